// What the page tells and asks a person: one notice at the top, and a question that must be answered.

const notice = document.getElementById("notice");
const dialog = document.getElementById("ask");

// The notice stays until it is closed, another one comes, or what it is about is over (`dismiss`).
export function notify(words, { about = "", label = "×", act = null } = {}) {
  const [message, old] = notice.children;
  const button = old.cloneNode();
  message.textContent = words;
  button.textContent = label;
  button.addEventListener("click", () => {
    notice.hidden = true;
    act?.();
  });
  old.replaceWith(button);
  notice.dataset.about = about;
  notice.hidden = false;
}

export function dismiss(about) {
  if (notice.dataset.about === about) notice.hidden = true;
}

// Resolves to whether the person chose the action.
export function confirm(question, action) {
  document.getElementById("question").textContent = question;
  dialog.querySelector("[value=yes]").textContent = action;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
