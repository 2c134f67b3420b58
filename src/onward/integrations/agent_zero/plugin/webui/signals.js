// Actions of a person that say something about the last answer. They are sent raw; the reward decides what they
// are worth. A failure is silent: the user requested nothing.

import { callJsonApi } from "/js/api.js";

const SOON_MS = 120000;
// The end of an endpoint's path → signal. A reset counts only soon after an answer.
const ENDPOINTS = [
  [/\/?_chat_branching\/branch_chat$/, "branched"],
  [/(^|\/)nudge$/, "nudged"],
  [/(^|\/)chat_(reset|remove)$/, "reset"],
  [/(^|\/)(chat_)?stop$/, "abandoned"],
];
const answers = new Map();

// Remembers the last answer of a chat and when it was given. An old chat that is opened, scrolled or cleaned up
// has old answers, so the time is the host's (seconds); without it, the answer counts as old.
export function seen(context, { id, no, timestamp }) {
  const known = answers.get(context);
  if (known && known.id !== id && known.no > no) return;
  answers.set(context, { id, no, at: typeof timestamp === "number" ? timestamp * 1000 : 0 });
}

export function signalOf(endpoint, data, now = Date.now()) {
  const found = ENDPOINTS.find(([path]) => path.test(String(endpoint || "").split("?")[0]));
  const context = data && (data.context || data.ctxid || data.context_id);
  if (!found || typeof context !== "string") return null;
  const last = answers.get(context);
  if (found[1] === "reset" && (!last || now - last.at > SOON_MS)) return null;
  const message = found[1] === "reset" || found[1] === "branched" ? last && last.id : null;
  return { context, signal: found[1], ...(message ? { message_id: message } : {}) };
}

export async function send(signal) {
  try {
    await callJsonApi("/plugins/onward/signal", signal);
  } catch (error) {
    console.debug("onward", error);
  }
}
