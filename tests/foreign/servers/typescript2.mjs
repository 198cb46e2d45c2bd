// A small server on the 2.x line of the TypeScript SDK: `typescript2.mjs stdio` or `typescript2.mjs http PORT`.
import { createServer } from "node:http";

import { toNodeHandler } from "@modelcontextprotocol/node";
import {
  McpServer,
  ResourceTemplate,
  acceptedContent,
  completable,
  createMcpHandler,
  inputRequired,
} from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

import { WORDS, note, pause, text } from "./ledger.mjs";

const [wire, port] = process.argv.slice(2);
let notify;

function small() {
  const server = new McpServer({ name: "small", version: "1" }, { capabilities: { resources: { subscribe: true } } });

  server.registerTool("echo", { inputSchema: z.object({ text: z.string() }) }, async (given) => text(given.text));

  server.registerTool("fails", {}, async () => {
    throw new Error("it does not work");
  });

  server.registerTool(
    "slow",
    { inputSchema: z.object({ name: z.string(), steps: z.number(), pause_ms: z.number() }) },
    async ({ name, steps, pause_ms }, { mcpReq }) => {
      note("slow", name, "begin");
      const progressToken = mcpReq._meta?.progressToken;
      for (let step = 1; step <= steps; step++) {
        try {
          await pause(pause_ms, mcpReq.signal);
        } catch (cancelled) {
          note("slow", name, "cancelled");
          throw cancelled;
        }
        if (progressToken === undefined) continue;
        await mcpReq.notify({
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
    { inputSchema: z.object({ name: z.string(), then: z.string() }) },
    async ({ name, then }) => {
      note("charge", name, "charged");
      if (then === "hang") await new Promise(() => {});
      return text(`charged ${name}`);
    },
  );

  const colour = z.object({ colour: z.string() });
  server.registerTool("ask", {}, async ({ mcpReq }) => {
    const answer = acceptedContent(mcpReq.inputResponses, "colour", colour);
    if (answer) return text(answer.colour);
    const request = inputRequired.elicit({ message: "Which colour?", requestedSchema: colour });
    return inputRequired({ inputRequests: { colour: request } });
  });

  server.registerTool("sample", {}, async ({ mcpReq }) => {
    const said = mcpReq.inputResponses?.said;
    if (said) return text(said.content.text);
    const messages = [{ role: "user", content: { type: "text", text: "Say something." } }];
    const request = inputRequired.createMessage({ messages, maxTokens: 10 });
    return inputRequired({ inputRequests: { said: request } });
  });

  server.registerTool("pin", {}, async () => {
    if (notify) notify.resourceUpdated("note://board");
    else await server.server.sendResourceUpdated({ uri: "note://board" });
    return text("pinned");
  });

  const who = completable(z.string(), (begun) => WORDS.filter((word) => word.startsWith(begun)));
  server.registerPrompt("greet", { argsSchema: z.object({ who }) }, ({ who }) => ({
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
  serveStdio(small);
} else {
  const handler = createMcpHandler(small);
  notify = handler.notify;
  createServer(toNodeHandler(handler)).listen(Number(port), "127.0.0.1");
}
