// Stop, nudge, reset and branch: read from the calls that the interface makes for them.

import { send, signalOf } from "../../../webui/signals.js";

export default async function (call) {
  if (!call || call.error || String(call.endpoint || "").includes("/plugins/onward/")) return;
  const signal = signalOf(call.endpoint, call.data);
  if (signal) void send(signal);
}
