// Runs the official conformance suite's client scenarios against the two clients in this directory.
//
//   node run.mjs NODE_PREFIX EXAMPLES [--write]
//
// NODE_PREFIX is where tests/node/package.json is installed, EXAMPLES where cargo puts the two clients.
// Without --write it fails when a scenario that docs/conformance.md lists as passed is not, or when
// it lists other scenarios than the suite has. With it, it writes the tables there.

import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [prefix, examples, write] = process.argv.slice(2);
const page = new URL("../../docs/conformance.md", import.meta.url);
const CLIENTS = ["client", "raw"];

// Which scenarios of which version of the suite, as the page's headings name them.
const RUNS = [
  { title: "0.2.0-alpha.12 at 2025-11-25", suite: "conformance-0.2", args: ["--suite", "all", "--spec-version", "2025-11-25"] },
  { title: "0.2.0-alpha.12 at 2026-07-28", suite: "conformance-0.2", args: ["--suite", "all", "--spec-version", "2026-07-28"] },
  { title: "0.2.0-alpha.12, older servers", suite: "conformance-0.2", args: ["--suite", "backcompat"] },
  { title: "0.2.0-alpha.12, extensions", suite: "conformance-0.2", args: ["--suite", "extensions"] },
  { title: "0.1.16", suite: "conformance-0.1", args: ["--suite", "all"] },
];

function suite(run, client, args) {
  const out = mkdtempSync(join(tmpdir(), "conformance-"));
  const program = join(prefix, "node_modules", run.suite, "dist", "index.js");
  const command = join(examples, `conformance_${client}`);
  const all = [program, "client", "--command", command, "-o", out, ...args];
  return new Promise((resolve) => {
    // Its own verdict is not asked for: a scenario in which nothing was checked passes there.
    execFile(process.execPath, all, { timeout: 280_000, maxBuffer: 1 << 28 }, () => {
      const found = results(out);
      rmSync(out, { recursive: true });
      resolve(found);
    });
  });
}

// Scenario to { passed, failed, warned }. A scenario's directory is its name and a time.
function results(out) {
  const found = new Map();
  for (const entry of readdirSync(out, { recursive: true })) {
    const file = join(out, entry, "checks.json");
    if (!existsSync(file)) continue;
    const name = entry.replace(/-\d{4}-\d\d-\d\dT[\d-]+Z$/, "");
    const of = (status) => JSON.parse(readFileSync(file)).filter((c) => c.status === status).length;
    found.set(name, { passed: of("SUCCESS"), failed: of("FAILURE"), warned: of("WARNING") });
  }
  return found;
}

const passes = (r) => r !== undefined && r.passed > 0 && r.failed === 0 && r.warned === 0;

async function measure(run, client) {
  const found = await suite(run, client, run.args);
  // The suite runs its scenarios side by side, and some of them measure time: what did not pass in
  // company is asked again alone.
  const version = run.args.includes("--spec-version") ? run.args.slice(-2) : [];
  for (const [name, result] of found) {
    for (let again = 0; again < 2 && !passes(found.get(name)) && result.failed + result.warned < 3; again++) {
      const alone = await suite(run, client, ["--scenario", name, ...version]);
      const [first] = alone.values();
      if (first) found.set(name, first);
    }
  }
  return found;
}

const shown = (r) => (r ? `${r.passed} of ${r.passed + r.failed + r.warned}` : "–");

function rowsOf(text, title) {
  const section = text.split(`\n## ${title}\n`)[1]?.split("\n## ")[0] ?? "";
  const rows = section.split("\n").filter((line) => line.startsWith("| `"));
  return new Map(rows.map((line) => {
    const [name, ours, raw, reason] = line.split("|").slice(1, -1).map((cell) => cell.trim());
    return [name.replaceAll("`", ""), { ours, raw, reason }];
  }));
}

const isAll = (cell) => /^(\d+) of \1$/.test(cell ?? "");

let text = readFileSync(page, "utf8");
const wrong = [];
for (const run of RUNS) {
  const listed = rowsOf(text, run.title);
  const [ours, raw] = [await measure(run, CLIENTS[0]), write ? await measure(run, CLIENTS[1]) : new Map()];
  const names = [...ours.keys()].sort();
  const good = names.filter((name) => passes(ours.get(name)));
  console.log(`${run.title}: ${good.length} of ${names.length} scenarios`);
  if (write) {
    const rows = names.map((name) => {
      const reason = passes(ours.get(name)) ? "" : listed.get(name)?.reason || "TODO";
      return `| \`${name}\` | ${shown(ours.get(name))} | ${shown(raw.get(name))} | ${reason} |`;
    });
    const table = ["| scenario | this crate | raw rmcp | why not |", "|---|---|---|---|", ...rows].join("\n");
    const [before, after = ""] = text.split(`\n## ${run.title}\n`);
    const rest = after.slice(after.search(/\n## |$(?![\s\S])/));
    text = `${before}\n## ${run.title}\n\n${table}\n${rest}`;
    continue;
  }
  for (const name of new Set([...names, ...listed.keys()])) {
    if (!listed.has(name)) wrong.push(`${run.title}: ${name} is not on the page`);
    else if (!ours.has(name)) wrong.push(`${run.title}: ${name} did not run`);
    else if (isAll(listed.get(name).ours) && !passes(ours.get(name)))
      wrong.push(`${run.title}: ${name} is listed as passed, and was ${shown(ours.get(name))}`);
  }
}
if (write) writeFileSync(page, text);
if (wrong.length > 0) {
  console.error(wrong.join("\n"));
  process.exit(1);
}
