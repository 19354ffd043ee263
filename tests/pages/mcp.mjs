// A small MCP server for checks (streamable HTTP, revision 2025-06-18): sessions, tools in two pages of a list, answers as JSON or as
// events among which it asks something itself. `asked` has the messages that came, `forget` ends all sessions.

import { createServer } from "node:http";

const TOOLS = [
  {
    name: "get_weather", description: "Get the current weather for a city.",
    inputSchema: { type: "object", properties: { city: { type: "string", description: "The name of the city" } }, required: ["city"] },
  },
  { name: "get_time", description: "Get the current time in a city.", inputSchema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
];

/** Starts it; `cors: false` lets no page of another origin call it, `token` is asked for where it is given. */
export async function mcpServer({ cors = true, token = "" } = {}) {
  const asked = [];
  let sessions = new Set();
  const results = {
    initialize: () => ({ protocolVersion: "2025-06-18", capabilities: { tools: {} }, serverInfo: { name: "weather", version: "1" } }),
    "tools/list": ({ cursor }) => (cursor ? { tools: [TOOLS[1]] } : { tools: [TOOLS[0]], nextCursor: "2" }),
    "tools/call": ({ name, arguments: { city } }) =>
      name === "get_weather" ? { content: [{ type: "text", text: JSON.stringify({ city, weather: "snowy", temperature: -3 }) }] } : { content: [{ type: "text", text: "no clock" }], isError: true },
  };
  const answer = async (request, response) => {
    const status = (code) => response.writeHead(code).end();
    if (cors) {
      response.setHeader("Access-Control-Allow-Origin", request.headers.origin ?? "*");
      response.setHeader("Access-Control-Expose-Headers", "Mcp-Session-Id");
      if (request.method === "OPTIONS") {
        response.setHeader("Access-Control-Allow-Headers", request.headers["access-control-request-headers"] ?? "");
        response.setHeader("Access-Control-Allow-Methods", "POST, DELETE");
      }
    }
    if (request.method === "OPTIONS") return status(204);
    if (token && request.headers.authorization !== `Bearer ${token}`) return status(401);
    const session = request.headers["mcp-session-id"];
    if (request.method === "DELETE") return sessions.delete(session), status(204);
    if (!/application\/json.*text\/event-stream/.test(request.headers.accept)) return status(406);
    let text = "";
    for await (const part of request) text += part;
    const message = JSON.parse(text);
    if (message.method === "initialize") {
      const id = `session-${asked.length}`;
      sessions.add(id);
      response.setHeader("Mcp-Session-Id", id);
    } else if (!sessions.has(session)) return status(404);
    else if (request.headers["mcp-protocol-version"] !== "2025-06-18") return status(400);
    asked.push(message);
    if (message.id === undefined || !message.method) return status(202);
    const reply = { jsonrpc: "2.0", id: message.id, result: results[message.method](message.params) };
    if (message.method !== "tools/call") return response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(reply));
    response.writeHead(200, { "Content-Type": "text/event-stream" });
    const event = (data) => response.write(`event: message\r\ndata: ${JSON.stringify(data)}\r\n\r\n`);
    event({ jsonrpc: "2.0", method: "notifications/message", params: { level: "info", data: "looking out" } });
    event({ jsonrpc: "2.0", id: "its-own", method: "ping" });
    event(reply);
    response.end();
  };
  const server = createServer((request, response) => answer(request, response).catch((error) => response.writeHead(500).end(String(error))));
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/mcp`, asked, forget: () => (sessions = new Set()),
    stop: () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve))),
  };
}
