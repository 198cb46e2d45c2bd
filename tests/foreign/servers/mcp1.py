"""A small server on the 1.x line of the Python SDK: `mcp1.py stdio` or `mcp1.py http PORT`."""

import sys

import anyio
from ledger import note
from mcp.server.fastmcp import Context, FastMCP
from mcp.types import Completion, SamplingMessage, TextContent
from pydantic import BaseModel

PORT = int(sys.argv[2]) if sys.argv[1] == "http" else 0
mcp = FastMCP("small", host="127.0.0.1", port=PORT, log_level="WARNING")


@mcp.tool()
async def echo(text: str) -> str:
    return text


@mcp.tool()
async def fails() -> str:
    raise ValueError("it does not work")


@mcp.tool()
async def slow(name: str, steps: int, pause_ms: int, ctx: Context) -> str:
    note("slow", name, "begin")
    try:
        for step in range(steps):
            await anyio.sleep(pause_ms / 1000)
            await ctx.report_progress(step + 1, steps)
    except BaseException:
        note("slow", name, "cancelled")
        raise
    note("slow", name, "end")
    return "done"


@mcp.tool()
async def charge(name: str, then: str) -> str:
    note("charge", name, "charged")
    if then == "hang":
        await anyio.sleep_forever()
    return f"charged {name}"


class Answer(BaseModel):
    colour: str


@mcp.tool()
async def ask(ctx: Context) -> str:
    result = await ctx.elicit("Which colour?", Answer)
    return result.data.colour if result.action == "accept" else result.action


@mcp.tool()
async def sample(ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Say something."))
    result = await ctx.session.create_message([message], max_tokens=10)
    return result.content.text


@mcp.prompt()
def greet(who: str) -> str:
    return f"Greet {who}."


@mcp.resource("note://board")
def board() -> str:
    return "nothing new"


@mcp.resource("note://page/{number}")
def page(number: str) -> str:
    return f"page {number}"


@mcp.completion()
async def complete(ref, argument, context) -> Completion:
    words = ["Ada", "Alan", "Grace"]
    return Completion(values=[w for w in words if w.startswith(argument.value)])


mcp.run("stdio" if sys.argv[1] == "stdio" else "streamable-http")
