"""A small server on the 2.x line of the Python SDK: `mcp2.py stdio` or `mcp2.py http PORT`."""

import sys
from typing import Annotated

import anyio
from ledger import note
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp.types import Completion, CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

mcp = MCPServer("small", log_level="WARNING")


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


async def which_colour() -> Elicit[Answer]:
    return Elicit("Which colour?", Answer)


@mcp.tool()
async def ask(answer: Annotated[Answer, Resolve(which_colour)]) -> str:
    return answer.colour


async def something() -> Sample:
    text = TextContent(type="text", text="Say something.")
    return Sample([SamplingMessage(role="user", content=text)], max_tokens=10)


@mcp.tool()
async def sample(said: Annotated[CreateMessageResult, Resolve(something)]) -> str:
    return said.content.text


@mcp.tool()
async def pin(ctx: Context) -> str:
    await ctx.notify_resource_updated("note://board")
    return "pinned"


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


if sys.argv[1] == "stdio":
    mcp.run("stdio")
else:
    mcp.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
