// A small server on the 1.x line of the TypeScript SDK: `typescript1.mjs stdio` or `typescript1.mjs http PORT`.
import { randomUUID } from "node:crypto";

import { completable } from "@modelcontextprotocol/sdk/server/completable.js";
import { createMcpExpressApp } from "@modelcontextprotocol/sdk/server/express.js";
import { McpServer, ResourceTemplate } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { SubscribeRequestSchema, UnsubscribeRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { z } from "zod";

import { WORDS, note, pause, text } from "./ledger.mjs";

const [wire, port] = process.argv.slice(2);

function small() {
  const server = new McpServer({ name: "small", version: "1" }, { capabilities: { resources: { subscribe: true } } });
  const subscribed = new Set();
  server.server.setRequestHandler(SubscribeRequestSchema, async ({ params }) => {
    subscribed.add(params.uri);
    return {};
  });
  server.server.setRequestHandler(UnsubscribeRequestSchema, async ({ params }) => {
    subscribed.delete(params.uri);
    return {};
  });

  server.registerTool("echo", { inputSchema: { text: z.string() } }, async (given) => text(given.text));

  server.registerTool("fails", {}, async () => {
    throw new Error("it does not work");
  });

  server.registerTool(
    "slow",
    { inputSchema: { name: z.string(), steps: z.number(), pause_ms: z.number() } },
    async ({ name, steps, pause_ms }, { signal, sendNotification, _meta }) => {
      note("slow", name, "begin");
      const progressToken = _meta?.progressToken;
      for (let step = 1; step <= steps; step++) {
        try {
          await pause(pause_ms, signal);
        } catch (cancelled) {
          note("slow", name, "cancelled");
          throw cancelled;
        }
        if (progressToken === undefined) continue;
        await sendNotification({
          method: "notifications/progress",
          params: { progressToken, progress: step, total: steps },
        });
      }
      note("slow", name, "end");
      return text("done");
    },
  );

  server.registerTool(
    "charge",
    { inputSchema: { name: z.string(), then: z.string() } },
    async ({ name, then }) => {
      note("charge", name, "charged");
      if (then === "hang") await new Promise(() => {});
      return text(`charged ${name}`);
    },
  );

  const requestedSchema = { type: "object", properties: { colour: { type: "string" } }, required: ["colour"] };
  server.registerTool("ask", {}, async ({ requestId }) => {
    const asked = { message: "Which colour?", requestedSchema };
    const answer = await server.server.elicitInput(asked, { relatedRequestId: requestId });
    return text(answer.action === "accept" ? answer.content.colour : answer.action);
  });

  server.registerTool("sample", {}, async ({ requestId }) => {
    const messages = [{ role: "user", content: { type: "text", text: "Say something." } }];
    const said = await server.server.createMessage({ messages, maxTokens: 10 }, { relatedRequestId: requestId });
    return text(said.content.text);
  });

  server.registerTool("pin", {}, async () => {
    if (subscribed.has("note://board")) await server.server.sendResourceUpdated({ uri: "note://board" });
    return text("pinned");
  });

  const who = completable(z.string(), (begun) => WORDS.filter((word) => word.startsWith(begun)));
  server.registerPrompt("greet", { argsSchema: { who } }, ({ who }) => ({
    messages: [{ role: "user", content: { type: "text", text: `Greet ${who}.` } }],
  }));

  server.registerResource("board", "note://board", {}, async (uri) => ({
    contents: [{ uri: uri.href, text: "nothing new" }],
  }));
  const pages = new ResourceTemplate("note://page/{number}", { list: undefined });
  server.registerResource("page", pages, {}, async (uri, { number }) => ({
    contents: [{ uri: uri.href, text: `page ${number}` }],
  }));
  return server;
}

if (wire === "stdio") {
  await small().connect(new StdioServerTransport());
} else {
  const sessions = new Map();
  const app = createMcpExpressApp();
  app.all("/mcp", async (request, response) => {
    const id = request.headers["mcp-session-id"];
    let transport = sessions.get(id);
    if (id && !transport) {
      const error = { code: -32001, message: "Session not found" };
      response.status(404).json({ jsonrpc: "2.0", error, id: null });
      return;
    }
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
      });
      await small().connect(transport);
    }
    await transport.handleRequest(request, response, request.body);
  });
  app.listen(Number(port), "127.0.0.1");
}
