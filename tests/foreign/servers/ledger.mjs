// What the small servers write down, so that a test can tell what ran: a line for each fact.
import { appendFileSync } from "node:fs";

export function note(tool, name, fact) {
  const path = process.env.FOREIGN_LEDGER;
  // one write of a short line to a file opened for appending is not torn
  if (path) appendFileSync(path, `${process.pid} ${tool} ${name} ${fact}\n`);
}

export const WORDS = ["Ada", "Alan", "Grace"];

export const text = (said) => ({ content: [{ type: "text", text: said }] });

export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("cancelled"));
    });
  });
}
