// Thumbs, stars and a comment under each answer of the main agent.
//
// Agent Zero clears and rebuilds an answer's bar on each streamed update, so this runs often: it adds the buttons
// where they are missing, and restores the focus and an open comment. Code blocks and tables within an answer have
// such bars, too; those stay as they are.

import { createActionButton } from "/components/messages/action-buttons/simple-action-buttons.js";
import { toastFrontendError } from "/components/notifications/notification-store.js";
import { choose, comment, labelOf, starsOf, stateOf, watch } from "../../../webui/votes.js";
import { seen, send } from "../../../webui/signals.js";

const THUMBS = [["thumb_up", "thumbs_up"], ["thumb_down", "thumbs_down"]];
const STARS = [1, 2, 3, 4, 5].map((n) => `stars_${n}`);
const CONTENT = ".message-body"; // what an answer says, without its own bar
const COPY = ".action-copy, .action-content_copy, .copy-action"; // by the version of Agent Zero
const drafts = new Map(); // answer → text of an open comment
let focused = null; // [answer, part] of the control that had the focus
let live = null;
const watched = new WeakSet(); // bars stay while their buttons are rebuilt: one listener for each

export default async function (context) {
  const chat = globalThis.getContext && globalThis.getContext();
  for (const { args, result } of (context && context.results) || []) {
    if (!args || args.type !== "response" || args.agentno || !args.id || !result || !result.element) continue;
    if (typeof chat !== "string" || !chat) continue;
    seen(chat, args);
    for (const bar of result.element.querySelectorAll(".step-action-buttons")) {
      if (bar.closest(CONTENT)) continue;
      if (!bar.querySelector("[data-onward-vote]")) fill(bar, result.element, chat, args.id);
    }
  }
}

watch(refresh);

function fill(bar, element, chat, id) {
  dress();
  bar.dataset.onwardChat = chat;
  bar.dataset.onwardAnswer = id;
  for (const [icon, vote] of THUMBS) bar.append(voter(icon, vote, chat, id));
  const stars = make("span", { class: "onward-stars", role: "group", "aria-label": "Stars" });
  for (const vote of STARS) stars.append(voter("star", vote, chat, id));
  bar.append(stars);
  const open = createActionButton("comment", labelOf("comment"), () => toggle(bar, element, chat, id));
  open.dataset.onwardPart = "comment";
  open.setAttribute("aria-expanded", "false");
  bar.append(open);
  watchFocus(bar, id);
  watchCopy(bar, chat, id);
  if (drafts.has(id) && !form(element, id)) element.append(commentForm(bar, element, chat, id));
  draw(bar);
  restoreFocus(bar, element, id);
}

function voter(icon, vote, chat, id) {
  const button = createActionButton(icon, labelOf(vote), () => click(vote, chat, id));
  button.dataset.onwardPart = button.dataset.onwardVote = vote;
  return button;
}

async function click(vote, chat, id) {
  try {
    if (!(await choose(chat, id, vote))) return;
    say(stateOf(chat, id).vote ? `Your vote is stored: ${labelOf(stateOf(chat, id).vote)}.` : "Your vote is taken back.");
  } catch (error) {
    toastFrontendError(reason(error), "Onward");
  }
}

// Shows what is chosen in every bar on the page.
function refresh() {
  for (const bar of document.querySelectorAll("[data-onward-answer]")) draw(bar);
}

function draw(bar) {
  const { vote, comment: text } = stateOf(bar.dataset.onwardChat, bar.dataset.onwardAnswer);
  for (const button of bar.querySelectorAll("[data-onward-vote]")) {
    const own = button.dataset.onwardVote;
    button.setAttribute("aria-pressed", String(own === vote));
    button.classList.toggle("onward-on", starsOf(own) ? starsOf(own) <= starsOf(vote) : own === vote);
  }
  const open = bar.querySelector("[data-onward-part=comment]");
  if (open) {
    open.setAttribute("aria-expanded", String(drafts.has(bar.dataset.onwardAnswer)));
    open.classList.toggle("onward-on", Boolean(text));
  }
}

function form(element, id) {
  return [...element.querySelectorAll(".onward-comment")].find((one) => one.dataset.onwardFor === id);
}

function toggle(bar, element, chat, id) {
  if (drafts.has(id)) return close(bar, element, id);
  drafts.set(id, stateOf(chat, id).comment);
  element.append(commentForm(bar, element, chat, id));
  refresh();
  form(element, id).querySelector("textarea").focus();
}

function close(bar, element, id) {
  drafts.delete(id);
  const found = form(element, id);
  if (found) found.remove();
  refresh();
  const open = element.querySelector("[data-onward-part=comment]");
  if (open) open.focus();
}

function commentForm(bar, element, chat, id) {
  const name = `onward-comment-${id}`;
  const area = make("textarea", { id: name, rows: "2", maxlength: "2000", "data-onward-part": "text" });
  area.value = drafts.get(id);
  area.addEventListener("input", () => drafts.set(id, area.value));
  const made = make("form", { class: "onward-comment", "data-onward-for": id },
    make("label", { for: name }, "What could be better?"), area,
    make("button", { type: "submit", "data-onward-part": "send" }, "Send comment"));
  made.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = area.value.trim();
    if (!text) return close(bar, element, id);
    try {
      await comment(chat, id, text);
      close(bar, element, id);
      say("Your comment is stored.");
    } catch (error) {
      toastFrontendError(reason(error), "Onward");
    }
  });
  made.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close(bar, element, id);
  });
  watchFocus(made, id);
  return made;
}

// An element that is rebuilt loses the focus without a reason: the user did not leave it.
function watchFocus(root, id) {
  if (watched.has(root)) return;
  watched.add(root);
  root.addEventListener("focusin", (event) => {
    const part = event.target.closest("[data-onward-part]");
    focused = part ? [id, part.dataset.onwardPart] : null;
  });
  root.addEventListener("focusout", (event) => {
    const left = event.target;
    queueMicrotask(() => {
      const now = document.activeElement;
      if (left.isConnected && !(now && now.closest("[data-onward-part]"))) focused = null;
    });
  });
}

function restoreFocus(bar, element, id) {
  if (!focused || focused[0] !== id || document.activeElement !== document.body) return;
  const part = element.querySelector(`[data-onward-part="${focused[1]}"]`);
  if (part) part.focus({ preventScroll: true });
}

function watchCopy(bar, chat, id) {
  const copy = bar.querySelector(COPY);
  if (copy) copy.addEventListener("click", () => void send({ context: chat, message_id: id, signal: "copied" }));
}

function reason(error) {
  return String((error && error.message) || error).slice(0, 300) || "The vote was not taken.";
}

function say(text) {
  if (!live || !live.isConnected) {
    live = make("div", { class: "onward-live", role: "status", "aria-live": "polite" });
    document.body.append(live);
  }
  live.textContent = text;
}

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function dress() {
  if (document.getElementById("onward-style")) return;
  const link = make("link", { id: "onward-style", rel: "stylesheet",
    href: new URL("../../../webui/onward.css", import.meta.url).href });
  document.head.append(link);
}
