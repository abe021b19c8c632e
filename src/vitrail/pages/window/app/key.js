// The API key of a service that wants one: kept for this tab alone, sent as a header, never in an address.

const KEPT = "vitrail key";
const LETTERS = /^[\x21-\x7e]+$/; // that a header can have
let key = read();

export const hasKey = () => key !== "";

/** Whether a text can be a key at all. */
export const isKey = (words) => LETTERS.test(words);

/** The headers that every request to the service has. */
export const keyHeaders = () => (key ? { "X-API-Key": key } : {});

export function keepKey(words) {
  key = words;
  try {
    sessionStorage.setItem(KEPT, words);
  } catch {
    // the browser does not allow it: it is known until the page is left
  }
}

export function forgetKey() {
  key = "";
  try {
    sessionStorage.removeItem(KEPT);
  } catch {
    // then it was not kept
  }
}

function read() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}
