// Few-shot classes, kept on this device in IndexedDB: one record for each model.

const NAME = "vitrail";
const STORE = "taught"; // do not rename: classes are kept under this name in browsers

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

export function loadClasses(model) {
  return withStore("readonly", (store) => store.get(model));
}

export function saveClasses(model, classes) {
  return withStore("readwrite", (store) => store.put(classes, model));
}

export function deleteClasses(model) {
  return withStore("readwrite", (store) => store.delete(model));
}
