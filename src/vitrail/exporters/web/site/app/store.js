// What was taught, kept on this device in IndexedDB: one record for each model.

const NAME = "vitrail";
const STORE = "taught";

function request(made) {
  return new Promise((resolve, reject) => {
    made.onsuccess = () => resolve(made.result);
    made.onerror = () => reject(made.error);
  });
}

function openDatabase() {
  const made = indexedDB.open(NAME, 1);
  made.onupgradeneeded = () => made.result.createObjectStore(STORE);
  return request(made);
}

async function withStore(mode, use) {
  const database = await openDatabase();
  try {
    const transaction = database.transaction(STORE, mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
    const result = await request(use(transaction.objectStore(STORE)));
    await done;
    return result;
  } finally {
    database.close();
  }
}

export function loadTaught(model) {
  return withStore("readonly", (store) => store.get(model));
}

export function saveTaught(model, classes) {
  return withStore("readwrite", (store) => store.put(classes, model));
}

export function deleteTaught(model) {
  return withStore("readwrite", (store) => store.delete(model));
}
