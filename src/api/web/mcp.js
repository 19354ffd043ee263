// A client of one MCP server: the streamable HTTP transport of the Model Context Protocol, revision 2025-06-18. The browser itself
// speaks to the server, which must allow this page's origin (CORS). Knows nothing of conversations or of the screen.

const REVISION = "2025-06-18";
/** Revisions whose transport and tools are these. */
const KNOWN = new Set([REVISION, "2025-03-26"]);
/** Time for the first messages; a tool may take as long as it likes, until the user stops it. */
const GREET_MS = 15_000;
/** Pages of a list of tools: a server that never ends it is left at that. */
const MAX_PAGES = 50;

export class McpServer {
  /** `token` is sent as a bearer token where it is not empty. */
  constructor(url, token = "") {
    this.url = url;
    this.token = token;
    this.name = new URL(url).host;
    this.tools = [];
    this.forget();
  }

  forget() {
    this.session = null;
    this.revision = null;
    this.nextId = 1;
  }

  /** Greets the server and reads its tools (`name`, `description`, `inputSchema`). Throws words for the user. */
  async connect() {
    const signal = AbortSignal.timeout(GREET_MS);
    await this.greet(signal);
    const tools = [];
    let cursor;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const listed = await this.ask("tools/list", cursor ? { cursor } : {}, signal);
      tools.push(...(listed.tools ?? []).filter((tool) => typeof tool?.name === "string"));
      cursor = listed.nextCursor;
      if (!cursor) break;
    }
    this.tools = tools;
  }

  async greet(signal) {
    this.forget();
    const about = await this.ask("initialize", { protocolVersion: REVISION, capabilities: {}, clientInfo: { name: "nextn", version: "1" } }, signal);
    if (!KNOWN.has(about.protocolVersion)) {
      throw new Error(`the server speaks revision ${about.protocolVersion} of MCP; ${[...KNOWN].join(", ")} are known here`);
    }
    this.revision = about.protocolVersion;
    this.name = about.serverInfo?.title || about.serverInfo?.name || this.name;
    await this.tell({ method: "notifications/initialized" }, signal);
  }

  /** Runs a tool; gives its `text` and whether that is an error of the tool's. Throws words for the user, and `AbortError`. */
  async call(name, args, signal) {
    const run = () => this.ask("tools/call", { name, arguments: args }, signal);
    let result;
    try {
      if (!this.revision) await this.greet(signal);
      result = await run();
    } catch (error) {
      // A server that was started anew knows the session no longer.
      if (!(error instanceof Gone)) throw error;
      await this.greet(signal);
      result = await run();
    }
    return { text: textOf(result), failed: result.isError === true };
  }

  /** Ends the session, where the server has one. */
  leave() {
    if (this.session) this.send("DELETE", undefined, AbortSignal.timeout(GREET_MS)).catch(() => {});
    this.forget();
  }

  send(method, body, signal) {
    const headers = { Accept: "application/json, text/event-stream" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    if (this.session) headers["Mcp-Session-Id"] = this.session;
    if (this.revision) headers["MCP-Protocol-Version"] = this.revision;
    const text = body === undefined ? undefined : JSON.stringify({ jsonrpc: "2.0", ...body });
    return fetch(this.url, { method, headers, body: text, signal, credentials: "omit", referrerPolicy: "no-referrer" });
  }

  /** Sends a message; gives its response once that is known to be none of HTTP's errors. */
  async post(body, signal) {
    let response;
    try {
      response = await this.send("POST", body, signal);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (error.name === "TimeoutError") throw new Error(`no answer in ${GREET_MS / 1000} seconds`);
      // A browser does not tell a page which of the two it is.
      throw new Error("it cannot be reached, or does not allow this page's origin (CORS)");
    }
    if (response.ok) return response;
    if (response.status === 404 && this.session) throw new Gone();
    if (response.status === 401 || response.status === 403) throw new Error(`it answers ${response.status}: it wants a token, or another one`);
    throw new Error(`it answers ${response.status} ${response.statusText}`);
  }

  async tell(message, signal) {
    await (await this.post(message, signal)).body?.cancel();
  }

  /** A request's result. */
  async ask(method, params, signal) {
    const id = this.nextId;
    this.nextId += 1;
    try {
      const response = await this.post({ id, method, params }, signal);
      if (method === "initialize") this.session = response.headers.get("Mcp-Session-Id");
      for await (const message of messages(response)) {
        if (message.id === id && !message.method) {
          if (message.error) throw new Error(message.error.message ?? `error ${message.error.code}`);
          return message.result ?? {};
        }
        if (message.method && message.id !== undefined) await this.tell(answerTo(message), signal);
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
      // The server need not go on with it.
      const told = { method: "notifications/cancelled", params: { requestId: id, reason: "stopped by the user" } };
      this.tell(told, AbortSignal.timeout(GREET_MS)).catch(() => {});
      throw error;
    }
    throw new Error(`it ended its response to ${method} without an answer`);
  }
}

/** The server has ended the session. */
class Gone extends Error {
  constructor() {
    super("the server has ended the session");
  }
}

/** What is answered to a request of the server's: this client offers it nothing. */
const answerTo = ({ id, method }) =>
  method === "ping" ? { id, result: {} } : { id, error: { code: -32601, message: `${method} is not offered by this client` } };

/** The messages of a response: one body of JSON, or events that each hold one. */
async function* messages(response) {
  if (!/^text\/event-stream\b/i.test(response.headers.get("Content-Type") ?? "")) {
    const text = await response.text();
    try {
      yield* [JSON.parse(text)].flat();
    } catch {
      throw new Error("its answer is no JSON: the address may lead to something else than MCP");
    }
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).replace(/^ /, ""));
        if (data.length) yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Characters of a result: more would fill most contexts. */
const MAX_RESULT = 100_000;

/** A tool's result as a text for the model. */
function textOf({ content, structuredContent }) {
  const parts = (content ?? []).map((part) => {
    if (part.type === "text") return part.text;
    if (part.type === "resource") return part.resource?.text ?? `[${part.resource?.uri}: not a text]`;
    if (part.type === "resource_link") return `[${part.name ?? "resource"}: ${part.uri}]`;
    return `[${part.type}${part.mimeType ? ` of type ${part.mimeType}` : ""}: not shown to the model]`;
  });
  if (!parts.length && structuredContent !== undefined) parts.push(JSON.stringify(structuredContent));
  const text = parts.join("\n");
  return text.length > MAX_RESULT ? `${text.slice(0, MAX_RESULT)}\n[cut: ${text.length - MAX_RESULT} more characters]` : text;
}
