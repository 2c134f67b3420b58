// <onward-feedback token="…">: thumbs or stars and a comment for one answer of an agent.
// Runs under a strict Content-Security-Policy and throws no error into the page; a vote that cannot be
// sent is stored and sent later.
(() => {
  "use strict";
  const NAME = "onward-feedback";
  const script = document.currentScript;
  const HOME = script && script.src ? new URL("feedback", script.src).href : "";
  const SETTLE_MS = 400; // arrow keys pass over choices
  const TEXTS = {
    question: "How was this answer?",
    up: "Good answer",
    down: "Bad answer",
    stars: "Stars",
    star: "{n} of 5 stars",
    comment: "What could be better? (optional)",
    send: "Send comment",
    sending: "Sending…",
    thanks: "Thank you. You can still change your vote.",
    offline: "You are offline. Your vote is kept and sent later.",
    waiting: "No connection. Your vote is kept and sent later.",
    limited: "That was a lot. Your last vote is kept and sent soon.",
    expired: "This page may not vote any more. Please reload it.",
    refused: "Your vote could not be taken: {why}",
  };
  const STYLE = `
:host { all: initial; display: block; font: inherit; color: inherit; color-scheme: inherit;
  --accent: var(--onward-accent, #2563eb); --line: color-mix(in srgb, currentColor 26%, transparent);
  --soft: color-mix(in srgb, currentColor 5%, transparent); }
form { display: flex; flex-wrap: wrap; align-items: center; gap: .5em .75em; margin: 0; max-width: 34em;
  font: inherit; font-size: .925em; line-height: 1.4; }
.set { display: inline-flex; gap: .3em; }
.pick { position: relative; display: inline-grid; place-items: center; width: 2.5em; height: 2.5em;
  border: 1px solid var(--line); border-radius: .7em; cursor: pointer; }
.stars .pick { width: 1.9em; border: 0; }
.stars svg { width: 1.5em; height: 1.5em; }
.pick input { position: absolute; inset: 0; margin: 0; opacity: 0; }
svg { width: 1.3em; height: 1.3em; fill: none; stroke: currentColor; stroke-width: 1.75;
  stroke-linejoin: round; stroke-linecap: round; }
label.on { color: var(--accent); border-color: currentColor;
  background: color-mix(in srgb, currentColor 12%, transparent); }
.stars label.on { background: none; }
label.on svg { fill: currentColor; fill-opacity: .3; }
.stars label.on svg { fill-opacity: 1; }
.pick:has(:focus-visible), textarea:focus-visible, button:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }
.more { flex-basis: 100%; display: grid; gap: .4em; justify-items: start; margin-top: .25em; }
.more[hidden], :host([hidden]) { display: none; }
textarea { box-sizing: border-box; width: 100%; min-height: 4em; padding: .5em .65em; font: inherit;
  color: inherit; background: var(--soft); border: 1px solid var(--line); border-radius: .7em;
  resize: vertical; }
button { font: inherit; padding: .4em .95em; color: inherit; background: none;
  border: 1px solid var(--line); border-radius: .7em; cursor: pointer; }
.pick:hover, button:hover { background: var(--soft); }
.status { flex-basis: 100%; min-height: 1.4em; margin: 0; opacity: .85; }
@media (prefers-color-scheme: dark) { :host { --accent: var(--onward-accent, #7aa7ff); } }
@media (forced-colors: active) { label.on { outline: 3px solid Highlight; } }`;
  const UP = "M7 10v11H3V10zM7 10l4-8a2.5 2.5 0 0 1 2.5 2.5V8H19a2 2 0 0 1 2 2.3l-1.2 8A3 3 0 0 1 17 21H7";
  const STAR = "m12 3 2.7 5.6 6.1.8-4.5 4.3 1.1 6.1-5.4-3-5.4 3 1.1-6.1L3.2 9.4l6.1-.8z";

  let sheet = null;
  const dress = (root) => {
    try {
      if (!sheet) (sheet = new CSSStyleSheet()).replaceSync(STYLE);
      root.adoptedStyleSheets = [sheet];
    } catch {
      root.append(make("style", {}, STYLE)); // an old browser
    }
  };
  const make = (tag, set = {}, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(set)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  };
  const icon = (path, turned) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS(svg.namespaceURI, "path");
    line.setAttribute("d", path);
    if (turned) line.setAttribute("transform", "rotate(180 12 12)");
    svg.append(line);
    return svg;
  };
  const place = (el) => NAME + ":" + el.token.slice(-43);
  const starsOf = (value) => +((/^stars_(.)/.exec(value || "") || [])[1] || 0);
  const newId = () => {
    try {
      return crypto.randomUUID();
    } catch {
      return Date.now().toString(36) + "-" + Math.random().toString(36).slice(2);
    }
  };

  class OnwardFeedback extends HTMLElement {
    static observedAttributes = ["token"];

    connectedCallback() {
      this.safely(() => {
        if (!this.shadowRoot) this.build();
        this.online = () => this.safely(() => this.send());
        this.leave = () => this.safely(() => this.settling && this.settle());
        addEventListener("online", this.online);
        addEventListener("pagehide", this.leave);
        this.recall();
      });
    }

    disconnectedCallback() {
      removeEventListener("online", this.online);
      removeEventListener("pagehide", this.leave);
      clearTimeout(this.timer);
      this.leave();
    }

    attributeChangedCallback() {
      if (!this.form) return;
      this.leave(); // sends the last choice under its own token
      this.picked = this.owed = this.sent = null;
      this.area.value = "";
      this.say("");
      this.recall();
    }

    safely(work) {
      try {
        return work();
      } catch (error) {
        console.warn(NAME, error);
      }
    }

    text(name, put = {}) {
      let text = this.getAttribute("text-" + name) || TEXTS[name];
      for (const [key, value] of Object.entries(put)) text = text.replace("{" + key + "}", value);
      return text;
    }

    build() {
      const root = this.attachShadow({ mode: "open" });
      dress(root);
      const asked = this.getAttribute("ask") || "thumbs comment";
      const form = make("form", { novalidate: "" });
      const pick = (value, label, ...look) => {
        const input = make("input", { type: "radio", name: "vote", value, "aria-label": label });
        return make("label", { class: "pick", title: label }, input, ...look);
      };
      const group = (kind, label, picks) =>
        form.append(make("div", { role: "radiogroup", "aria-label": label, class: "set " + kind }, ...picks));
      const question = this.text("question");
      const both = asked.includes("thumbs");
      form.append(make("span", { "aria-hidden": "true" }, question));
      if (both) {
        group("thumbs", question, [pick("thumbs_up", this.text("up"), icon(UP)),
          pick("thumbs_down", this.text("down"), icon(UP, true))]);
      }
      if (asked.includes("stars")) {
        group("stars", both ? this.text("stars") : question, [1, 2, 3, 4, 5].map((n) =>
          pick("stars_" + n, this.text("star", { n }), icon(STAR))));
      }
      this.area = make("textarea", { id: "comment", maxlength: "2000", rows: "2" });
      this.more = make("div", { class: "more", hidden: "" },
        make("label", { for: "comment" }, this.text("comment")), this.area,
        make("button", { type: "submit" }, this.text("send")));
      this.wantsComment = asked.includes("comment");
      this.line = make("p", { class: "status", role: "status", "aria-live": "polite" });
      form.append(this.more, this.line);
      form.addEventListener("change", (event) => this.safely(() => {
        if (event.target.name === "vote") this.choose(event.target.value);
      }));
      form.addEventListener("submit", (event) => this.safely(() => {
        event.preventDefault();
        this.settle();
      }));
      root.append(form);
      this.form = form;
    }

    show() {
      const chosen = starsOf(this.picked);
      for (const input of this.form.querySelectorAll("input")) {
        const star = starsOf(input.value);
        input.checked = input.value === this.picked;
        input.parentNode.classList.toggle("on", star ? star <= chosen : input.checked);
      }
      this.more.hidden = !(this.wantsComment && this.picked);
    }

    say(name, put) {
      const text = name ? this.text(name, put) : "";
      this.line.textContent = text;
      this.dataset.state = name || "";
      this.dispatchEvent(new CustomEvent(NAME, { bubbles: true, composed: true,
        detail: { state: name, vote: this.picked } }));
    }

    choose(value) {
      this.picked = value;
      this.show();
      clearTimeout(this.settling);
      this.settling = setTimeout(() => this.safely(() => this.settle()), SETTLE_MS);
    }

    settle() {
      clearTimeout(this.settling);
      this.settling = 0;
      if (!this.picked) return;
      const stars = starsOf(this.picked);
      const body = stars ? { signal: "rating", stars } : { signal: this.picked };
      const comment = this.area.value.trim();
      if (comment) body.comment = comment;
      this.owed = { id: newId(), body };
      this.tries = 0;
      this.keep();
      this.send();
    }

    keep() {
      try {
        const { picked, owed, sent } = this;
        localStorage.setItem(place(this), JSON.stringify({ picked, owed, sent }));
      } catch {
        // kept in memory while the page is open
      }
    }

    recall() {
      let kept = null;
      this.token = this.getAttribute("token") || "";
      try {
        kept = JSON.parse(localStorage.getItem(place(this)));
      } catch {
        // nothing is stored
      }
      if (kept && kept.picked && !this.picked) {
        Object.assign(this, kept);
        const said = this.owed ? this.owed.body : this.sent;
        if (said && said.comment) this.area.value = said.comment;
      }
      this.show();
      if (this.owed) this.send();
    }

    // One at a time: a choice made meanwhile is sent next, so that the last vote arrives last.
    async send() {
      if (this.busy || !this.owed) return;
      if (navigator.onLine === false) return this.say("offline");
      this.busy = true;
      const owed = this.owed;
      let next = null;
      try {
        this.say("sending");
        const answer = await fetch(this.getAttribute("endpoint") || HOME, {
          method: "POST",
          credentials: "omit",
          keepalive: true,
          headers: { "Content-Type": "application/json", "Idempotency-Key": owed.id,
            Authorization: "Bearer " + this.token },
          body: JSON.stringify(owed.body),
        });
        next = await this.heard(answer);
      } catch {
        next = ["waiting"];
      }
      this.busy = false;
      this.safely(() => this.go(owed, next));
    }

    async heard(answer) {
      if (answer.ok) return ["thanks", null];
      const wait = +answer.headers.get("Retry-After") || 0;
      if (answer.status === 429) return ["limited", wait || 5];
      if (answer.status >= 500 || answer.status === 408) return ["waiting", wait];
      if (answer.status === 401) return ["expired", null];
      const said = await answer.json().catch(() => null);
      return ["refused", null, { why: (said && said.error && said.error.message) || answer.status }];
    }

    // wait: null if the vote is final, else the seconds that the server requested.
    go(owed, [name, wait, put]) {
      if (this.owed !== owed) return this.send();
      if (wait === null) {
        this.owed = null;
        this.sent = owed.body;
      } else {
        this.tries = (this.tries || 0) + 1;
        clearTimeout(this.timer);
        if (this.isConnected) this.timer = setTimeout(this.online, (wait || Math.min(60, 2 ** this.tries)) * 1000);
        if (navigator.onLine === false) name = "offline";
      }
      this.keep();
      this.say(name, put);
    }
  }

  try {
    if (!customElements.get(NAME)) customElements.define(NAME, OnwardFeedback);
    if (script && script.dataset.token) {
      const made = make(NAME);
      for (const { name, value } of script.attributes) {
        if (name.startsWith("data-")) made.setAttribute(name.slice(5), value);
      }
      script.after(made);
    }
  } catch (error) {
    console.warn(NAME, error);
  }
})();
