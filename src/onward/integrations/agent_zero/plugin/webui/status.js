// The status page: what is recorded, what waits, which model serves, and the switches.

import { callJsonApi } from "/js/api.js";
import { toastFrontendError } from "/components/notifications/notification-store.js";

const EVERY_MS = 5000;
const TWICE_MS = 600;
const STATES = {
  recording: "Recording",
  paused: "Paused",
  starting: "Starting",
  worker_down: "The worker is not running; finished work waits",
  disabled: "Switched off in the settings",
  unsupported: "This Agent Zero is too old",
};

export function lines(state) {
  const model = state.model || {};
  return [
    ["State", (STATES[state.state] || state.state || "unknown") + (state.reason ? `: ${state.reason}` : "")],
    ["Recorded", state.recorded],
    ["Waiting for the bus", state.queued],
    ["In progress", state.open],
    ["Votes", state.feedback],
    ["Not recorded by opt-out", state.opted_out],
    ["Lost", state.dropped],
    ["Failed, held encrypted", state.held],
    ["Worker ended, since it made no progress", hangs(state.hangs || {})],
    ["Put aside, since the worker could not record them",
      state.set_aside ? `${state.set_aside}. Try again: onward agent-zero retry` : state.set_aside],
    ["Model", model.id ? `${model.id}${model.version ? ` (version ${model.version})` : ""}` : "not known"],
    ["Last change of the model", [model.event, model.deployed_at].filter(Boolean).join(", ") || "none"],
    ["Gateway", state.gateway || "not configured"],
    ["Bus", state.nats],
    ["Plugin", state.version],
  ].map(([name, value]) => [name, value === undefined || value === null ? "unknown" : String(value)]);
}

function hangs({ count = 0, at, seconds }) {
  if (!count) return 0;
  return `${count === 1 ? "once" : `${count} times`}, after ${seconds} seconds, the last time at ${at}`;
}

export function mount(root) {
  const list = root.querySelector("[data-onward=facts]");
  const pause = root.querySelector("[data-onward=pause]");
  const project = root.querySelector("[data-onward=project]");
  const optOut = root.querySelector("[data-onward=opt-out]");
  const draw = (state) => {
    const rows = lines(state);
    const shown = list.querySelectorAll("dd");
    if (shown.length !== rows.length) {
      list.replaceChildren(...rows.flatMap(([name, value]) => [cell("dt", name), cell("dd", value)]));
    } else {
      rows.forEach(([, value], at) => {
        if (shown[at].textContent !== value) shown[at].textContent = value;
      });
    }
    pause.setAttribute("aria-checked", String(state.state === "paused"));
    if (state.opted_out_here !== undefined) optOut.setAttribute("aria-checked", String(state.opted_out_here));
  };
  const ask = async (body) => {
    const name = project.value.trim();
    const answer = await callJsonApi("/plugins/onward/status", name ? { project: name, ...body } : body);
    if (!answer || !answer.ok) throw new Error((answer && answer.error) || "There is no answer.");
    draw(answer);
  };
  const act = (body) => ask(body).catch((error) => toastFrontendError(String(error.message), "Onward"));
  const isOn = (button) => button.getAttribute("aria-checked") === "true";
  pause.addEventListener("click", () => act({ pause: !isOn(pause) }));
  optOut.addEventListener("click", () => {
    if (project.value.trim()) act({ opt_out: !isOn(optOut) });
    else project.focus();
  });
  project.addEventListener("change", () => act({}));
  const approvals = root.querySelector("[data-onward=approvals]");
  let decidedAt = -TWICE_MS; // the second click of a double click would be on the step that moved up
  const decide = async (body) => {
    const answer = await callJsonApi("/plugins/onward/approve", body);
    if (!answer || !answer.ok) throw new Error((answer && answer.error) || "There is no answer.");
    // What is shown stays where it is: the focus is not lost, and no other step moves below the pointer.
    const shown = new Map([...approvals.children].map((item) => [item.dataset.id, item]));
    const wanted = answer.waiting.length ? answer.waiting : [{ id: "none" }];
    for (const one of wanted) {
      if (!shown.has(one.id)) approvals.append(one.id === "none" ? none() : step(one));
      shown.delete(one.id);
    }
    for (const [id, item] of shown) {
      if (id === "none" || id === body.id || !answer.waiting.length) item.remove();
      else end(item);
    }
  };
  const none = () => {
    const item = cell("li", "None.");
    item.dataset.id = "none";
    return item;
  };
  const end = (item) => {
    if (item.querySelector("button:disabled")) return;
    for (const button of item.querySelectorAll("button")) button.disabled = true;
    item.append(" It does not wait any more.");
  };
  const step = (one) => {
    const item = cell("li", `${one.tool} ${one.arguments} ${one.chat ? `(chat ${one.chat}) ` : ""}`);
    item.dataset.id = one.id;
    for (const [label, approved] of [["Approve", true], ["Refuse", false]]) {
      const button = cell("button", label);
      button.type = "button";
      button.setAttribute("aria-label", `${label} ${one.tool} ${one.arguments}`);
      button.addEventListener("click", () => {
        if (performance.now() - decidedAt < TWICE_MS) return;
        decidedAt = performance.now();
        decide({ id: one.id, approved }).catch((error) => toastFrontendError(String(error.message), "Onward"));
      });
      item.append(button);
    }
    return item;
  };
  act({});
  decide({}).catch(() => {});
  const timer = setInterval(() => {
    if (root.isConnected) ask({}).then(() => decide({})).catch(() => {});
    else clearInterval(timer);
  }, EVERY_MS);
}

function cell(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}
