// Signing in at a service that wants an API key: a field, what is wrong in words, and a way to forget the key.
import { forgetKey, hasKey, isKey, keepKey } from "./key.js";
import { text } from "./language.js";

const find = (id) => document.getElementById(id);
let frame = null; // {attempt(), opened()}
let problem = null; // what is said under the field: a key of the catalogue, or a sentence

/** Wires the form; `attempt` asks the service something with the key, `opened` is called once it has answered. */
export function prepareSignIn(given) {
  frame = given;
  find("sign-in").addEventListener("submit", submit);
  find("key-forget").addEventListener("click", () => {
    forgetKey();
    location.reload(); // nothing that the key has shown stays in the page
  });
  find("key-forget").hidden = !hasKey();
}

/** Asks for a key, in place of everything that needs one; a key that was sent is wrong, and forgotten. */
export function askForKey() {
  say(hasKey() ? "frame.key.wrong" : null);
  forgetKey();
  lock(true);
  find("key").focus();
}

/** Writes again, in the chosen language, what is wrong. */
export function translateSignIn() {
  find("key-problem").textContent = problem?.startsWith("frame.") ? text(problem) : problem ?? "";
}

async function submit(event) {
  event.preventDefault();
  const words = find("key").value.trim();
  if (!isKey(words)) {
    refuse(words ? "frame.key.wrong" : "frame.key.missing");
    return;
  }
  keepKey(words);
  find("key-send").disabled = true;
  try {
    await frame.attempt();
  } catch (error) {
    forgetKey();
    refuse(error.code === 401 ? "frame.key.wrong" : error.message);
    return;
  } finally {
    find("key-send").disabled = false;
  }
  find("sign-in").reset();
  say(null);
  lock(false);
  frame.opened();
}

function refuse(words) {
  say(words);
  find("key").focus();
  find("key").select();
}

function say(words) {
  problem = words;
  find("key").setAttribute("aria-invalid", String(Boolean(words)));
  translateSignIn();
}

function lock(on) {
  find("sign-in").hidden = !on;
  find("key-forget").hidden = !hasKey();
  document.documentElement.classList.toggle("locked", on);
}
