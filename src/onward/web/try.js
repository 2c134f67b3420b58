// The trial page of the feedback widget: gets a token if the page has none, and shows the api's answer.
(() => {
  "use strict";
  const vote = document.querySelector("onward-feedback");
  const told = document.getElementById("told");
  const form = document.getElementById("key");
  const say = (text) => { told.textContent = text; };

  vote.addEventListener("onward-feedback", (event) => say(JSON.stringify(event.detail, null, 1)));
  if (!form) return;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const answer = await fetch("/feedback/tokens", {
        method: "POST",
        headers: { "Content-Type": "application/json", Authorization: "Bearer " + form.elements.key.value.trim() },
        body: JSON.stringify({ session_id: form.dataset.session, expires_in: 3600 }),
      });
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.error ? body.error.message : "HTTP " + answer.status);
      form.reset();
      form.hidden = true;
      vote.setAttribute("token", body.token);
      say("The page has a token now: vote.");
    } catch (error) {
      say(error.message);
    }
  });
})();
