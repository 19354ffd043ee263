// Conversations in the browser: kept in IndexedDB, with a short entry of each for the list. Knows nothing of the screen.

const NAME = "nextn";
/** Characters of a conversation that a search looks through. */
const MAX_SEARCHED = 200_000;

let opened = null;
/** What is kept where there is no IndexedDB (some settings forbid it): for as long as the page is open. */
const aside = { conversations: new Map(), entries: new Map() };

function database() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => {
        request.result.createObjectStore("conversations", { keyPath: "id" });
        request.result.createObjectStore("entries", { keyPath: "id" });
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

/** Whether what is kept outlives the page. */
export const lasts = async () => (await database()) !== null;

/** Work on both stores; its promise is kept when all of it is on the disk. */
async function within(mode, work) {
  const db = await database();
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(["conversations", "entries"], mode);
    const result = work(transaction.objectStore("conversations"), transaction.objectStore("entries"));
    transaction.oncomplete = () => resolve(result?.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

/** Tells other tabs of this page; null where the browser's settings forbid it. */
const others = channel();

function channel() {
  try {
    return new BroadcastChannel(NAME);
  } catch {
    return null;
  }
}

/** Calls `then` with the id of a conversation that another tab has changed. */
export const onChange = (then) => others?.addEventListener("message", ({ data }) => then(data));

const textOf = (node) => [node.content, node.reasoning, ...(node.texts ?? []).map(({ text }) => text)].filter(Boolean).join("\n");

const entryOf = (conversation) => ({
  id: conversation.id,
  title: conversation.title,
  changed: conversation.changed,
  text: conversation.nodes.map(textOf).join("\n").slice(0, MAX_SEARCHED).toLowerCase(),
});

/**
 * Keeps a conversation and counts its `revision`; false, and nothing is done, where another tab has kept it since it was read here.
 * Throws where there is no room for it.
 */
export async function keep(conversation) {
  let done = false;
  const put = (before, conversations, entries) => {
    if (before && (before.revision ?? 0) !== (conversation.revision ?? 0)) return;
    conversation.revision = (conversation.revision ?? 0) + 1;
    conversations(conversation);
    entries(entryOf(conversation));
    done = true;
  };
  if (await lasts()) {
    await within("readwrite", (conversations, entries) => {
      const before = conversations.get(conversation.id);
      before.onsuccess = () => put(before.result, (it) => conversations.put(it), (it) => entries.put(it));
    });
  } else {
    const into = (map) => (it) => map.set(it.id, structuredClone(it));
    put(aside.conversations.get(conversation.id), into(aside.conversations), into(aside.entries));
  }
  if (done) others?.postMessage(conversation.id);
  return done;
}

/** A conversation by its id; undefined where there is none. */
export async function fetched(id) {
  if (!(await lasts())) return structuredClone(aside.conversations.get(id));
  return within("readonly", (conversations) => conversations.get(id));
}

/** All conversations. */
export async function everything() {
  if (!(await lasts())) return [...aside.conversations.values()];
  return within("readonly", (conversations) => conversations.getAll());
}

/** Removes a conversation. */
export async function remove(id) {
  if (await lasts()) {
    await within("readwrite", (conversations, entries) => {
      conversations.delete(id);
      entries.delete(id);
    });
  } else {
    aside.conversations.delete(id);
    aside.entries.delete(id);
  }
  others?.postMessage(id);
}

/** Entries whose title or text has all words of `query`, the one that changed last first. */
export async function listed(query = "") {
  const all = (await lasts()) ? await within("readonly", (_, entries) => entries.getAll()) : [...aside.entries.values()];
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = all.filter(({ title, text }) => words.every((word) => title.toLowerCase().includes(word) || text.includes(word)));
  return found.sort((a, b) => b.changed - a.changed);
}
