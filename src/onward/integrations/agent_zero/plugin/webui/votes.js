// Votes of this browser: what was chosen for each answer, in which order it is sent, what failed.
//
// A change is a new vote with an id of its own; the last one counts. Votes on one answer are sent one after the
// other, so the last click also arrives last. A vote that was refused is undone on the page: it shows what was
// taken before. The second click of a double click is none.

import { callJsonApi } from "/js/api.js";

const PLACE = "onward-votes";
const MOST = 500;
const TWICE_MS = 400;
const EMPTY = { vote: null, comment: "" };
const states = new Map(recall());
const taken = new Map(); // answer with votes on their way → the state of the last one that was taken
const queues = new Map();
let last = { name: "", vote: null, at: -TWICE_MS };
const watchers = new Set();

export const LABELS = {
  thumbs_up: "Good answer",
  thumbs_down: "Bad answer",
  comment: "Comment on this answer",
};

export function labelOf(vote) {
  const stars = starsOf(vote);
  return stars ? `Rate ${stars} of 5 stars` : LABELS[vote];
}

export function starsOf(vote) {
  return vote && vote.startsWith("stars_") ? Number(vote.slice(6)) : 0;
}

export function stateOf(context, id) {
  return states.get(key(context, id)) || EMPTY;
}

export function watch(listener) {
  watchers.add(listener);
}

// Chooses a vote, or takes it back if it is chosen already. Gives false for the second click of a double click.
export async function choose(context, id, vote) {
  const now = performance.now();
  const twice = last.name === key(context, id) && last.vote === vote && now - last.at < TWICE_MS;
  last = { name: key(context, id), vote, at: now };
  if (twice) return false;
  const before = stateOf(context, id);
  const next = { ...before, vote: before.vote === vote ? null : vote };
  const body = next.vote === null ? { signal: "withdrawn" } : bodyOf(next.vote);
  try {
    await send(context, id, before, next, body);
  } catch (error) {
    last = { name: "", vote: null, at: -TWICE_MS }; // the user may try again at once
    throw error;
  }
  return true;
}

export function comment(context, id, text) {
  const before = stateOf(context, id);
  const body = before.vote ? bodyOf(before.vote) : { signal: "comment" };
  return send(context, id, before, { ...before, comment: text }, { ...body, comment: text });
}

function bodyOf(vote) {
  const stars = starsOf(vote);
  return stars ? { signal: "rating", stars } : { signal: vote };
}

function key(context, id) {
  return `${context}/${id}`;
}

async function send(context, id, before, next, body) {
  const name = key(context, id);
  if (!queues.has(name)) taken.set(name, before);
  put(name, next);
  const vote = { context, message_id: id, feedback_id: newId(), ...body };
  const turn = (queues.get(name) || Promise.resolve()).then(() => post(vote));
  const ended = turn.then(() => taken.set(name, next), () => {});
  queues.set(name, ended);
  try {
    await turn;
  } catch (error) {
    if (states.get(name) === next) put(name, taken.get(name));
    throw error;
  } finally {
    await ended;
    if (queues.get(name) === ended) {
      queues.delete(name);
      taken.delete(name);
    }
  }
}

async function post(vote) {
  const answer = await callJsonApi("/plugins/onward/feedback", vote);
  if (!answer || !answer.ok) throw new Error((answer && answer.error) || "The vote was not taken.");
}

function put(name, state) {
  states.delete(name);
  states.set(name, state);
  for (const oldest of states.keys()) {
    if (states.size <= MOST) break;
    states.delete(oldest);
  }
  try {
    localStorage.setItem(PLACE, JSON.stringify([...states]));
  } catch {
    // stored in memory while the page is open
  }
  for (const listener of watchers) listener();
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE));
    return Array.isArray(kept) ? kept.filter(isEntry) : [];
  } catch {
    return [];
  }
}

function isEntry(one) {
  const state = Array.isArray(one) && typeof one[0] === "string" && one[1];
  return Boolean(state) && typeof state.comment === "string" && (state.vote === null || typeof state.vote === "string");
}

function newId() {
  if (globalThis.crypto && crypto.randomUUID) return crypto.randomUUID();
  return "v" + Date.now().toString(36) + Math.random().toString(36).slice(2);
}
