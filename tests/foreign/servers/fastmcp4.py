"""A small server on fastmcp 4.x: `fastmcp4.py stdio` or `fastmcp4.py http PORT`."""

import sys

import anyio
from fastmcp import Context, FastMCP
from ledger import note
from mcp_types import (
    Completion,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)

mcp = FastMCP("small")


@mcp.tool
async def echo(text: str) -> str:
    return text


@mcp.tool
async def fails() -> str:
    raise ValueError("it does not work")


@mcp.tool
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


@mcp.tool
async def charge(name: str, then: str) -> str:
    note("charge", name, "charged")
    if then == "hang":
        await anyio.sleep_forever()
    return f"charged {name}"


COLOUR = {
    "type": "object",
    "properties": {"colour": {"type": "string"}},
    "required": ["colour"],
}
SAY = SamplingMessage(role="user", content=TextContent(type="text", text="Say something."))


@mcp.tool
async def ask(ctx: Context) -> str | InputRequiredResult:
    if ctx._is_modern_protocol():
        answers = ctx.input_responses or {}
        if "colour" in answers:
            return answers["colour"].content["colour"]
        form = ElicitRequestFormParams(message="Which colour?", requested_schema=COLOUR)
        return InputRequiredResult(input_requests={"colour": ElicitRequest(params=form)})
    result = await ctx.elicit("Which colour?", str)
    return result.data if result.action == "accept" else result.action


@mcp.tool
async def sample(ctx: Context) -> str | InputRequiredResult:
    if ctx._is_modern_protocol():
        answers = ctx.input_responses or {}
        if "said" in answers:
            return answers["said"].content.text
        params = CreateMessageRequestParams(messages=[SAY], max_tokens=10)
        return InputRequiredResult(input_requests={"said": CreateMessageRequest(params=params)})
    result = await ctx.session.create_message([SAY], max_tokens=10)
    return result.content.text


@mcp.prompt
def greet(who: str) -> str:
    return f"Greet {who}."


@mcp.resource("note://board")
def board() -> str:
    return "nothing new"


@mcp.resource("note://page/{number}")
def page(number: str) -> str:
    return f"page {number}"


@mcp.completion
def complete(ref, argument, context) -> Completion:
    words = ["Ada", "Alan", "Grace"]
    return Completion(values=[w for w in words if w.startswith(argument.value)])


if sys.argv[1] == "stdio":
    mcp.run("stdio", show_banner=False)
else:
    mcp.run("http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
