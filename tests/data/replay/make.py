"""Writes the replay set: agent sessions as the requests that an agent really sends, one per round.

An agent repeats its history with every round, so a session of n rounds gives n requests, or n + 1 where its
first question is asked on its own. Run from the root of the repository: `python -m tests.data.replay.make`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.dialects import Call, Picture, Result, Session, Turn, picture, write

HERE = Path(__file__).resolve().parent
Round = tuple[str | None, Sequence[tuple[str, dict[str, Any], Any]], str | None]
"""What the assistant says, its calls (name, arguments, result), and what the user says next."""


@dataclass(frozen=True, slots=True)
class Story:
    """A session as it is told here; `late` lists rounds whose results arrive in the reverse order."""

    name: str
    dialect: str
    system: str
    question: str | Sequence[str | Picture]
    rounds: Sequence[Round]
    tools: Sequence[str]
    late: frozenset[int] = frozenset()
    alone: bool = True


def _schema(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties)[:1],
    }


TOOLS = {
    "read_file": ("Reads a text file.", _schema(path="string", start="integer", end="integer")),
    "search_code": ("Searches the repository with a regular expression.", _schema(pattern="string")),
    "apply_patch": ("Applies a unified diff.", _schema(patch="string")),
    "run_tests": ("Runs the tests that match a name.", _schema(name="string")),
    "shell": ("Runs a command in bash.", _schema(command="string", timeout="number")),
    "query": ("Runs a read-only SQL query.", _schema(sql="string", limit="integer")),
    "list_events": ("列出日历中的日程。", _schema(day="string")),
    "create_event": ("新建日程。", _schema(title="string", start="string", minutes="integer")),
    "send_mail": ("Sends a mail.", _schema(to="string", subject="string", body="string")),
    "open_page": ("Opens a page in the browser.", _schema(url="string")),
    "screenshot": ("Takes a screenshot of the page.", _schema(full="boolean")),
    "click": ("Clicks at a point of the page.", _schema(x="integer", y="integer")),
    "type_text": ("Types into the focused field.", _schema(text="string")),
    "web_search": ("Searches the web.", _schema(query="string")),
    "weather": ("查询天气。", _schema(city="string")),
    "plot": ("Draws a chart and returns it as an image.", _schema(kind="string", column="string")),
}

CODE = (
    (
        "I'll look at the failing test first.",
        [
            (
                "run_tests",
                {"name": "test_parse_duration"},
                "FAILED tests/test_duration.py::test_parse_duration\n"
                "E   AssertionError: assert 5400 == 5460\n1 failed in 0.12s",
            )
        ],
        None,
    ),
    (
        None,
        [
            (
                "read_file",
                {"path": "src/duration.py", "start": 1, "end": 14},
                "import re\n\nUNITS = {'h': 3600, 'm': 60, 's': 1}\n\n\ndef parse(text: str) -> int:\n"
                "    total = 0\n    for number, unit in re.findall(r'(\\d+)([hm])', text):\n"
                "        total += int(number) * UNITS[unit]\n    return total\n",
            ),
            (
                "search_code",
                {"pattern": r"duration\.parse\("},
                "src/cli.py:41:    seconds = duration.parse(value)\n",
            ),
            ("search_code", {"pattern": r"TODO.*duration"}, ""),
        ],
        None,
    ),
    (
        "The pattern leaves out seconds.",
        [
            (
                "apply_patch",
                {"patch": "--- a/src/duration.py\n+++ b/src/duration.py\n@@ -8 +8 @@\n-([hm])\n+([hms])\n"},
                "",
            )
        ],
        None,
    ),
    (
        "",
        [("run_tests", {"name": "test_parse_duration"}, "1 passed in 0.09s")],
        "Thanks. Anything else odd in there?",
    ),
    (
        None,
        [
            (
                "shell",
                {"command": "git diff --stat", "timeout": 10.0},
                " src/duration.py | 2 +-\n 1 file changed\n",
            ),
            ("shell", {"command": "ruff check src"}, "All checks passed!\n"),
        ],
        None,
    ),
)

SHELL = (
    (
        "Checking the disks.",
        [
            (
                "shell",
                {"command": "df -h / /var"},
                "Filesystem      Size  Used Avail Use% Mounted on\n/dev/sda1        40G   38G  1.1G  98% /\n"
                "/dev/sdb1       200G   21G  169G  11% /var\n",
            ),
            ("shell", {"command": "mount | grep -c tmpfs"}, "7\n"),
        ],
        None,
    ),
    (
        None,
        [
            (
                "shell",
                {"command": "du -xh --max-depth=1 / | sort -h | tail -4"},
                "1.9G\t/opt\n3.4G\t/usr\n29G\t/home\n38G\t/\n",
            )
        ],
        None,
    ),
    (
        "The home directories hold most of it.",
        [
            ("shell", {"command": "mkdir -p /var/archive"}, None),
            (
                "shell",
                {"command": "find /home -name '*.core' -size +100M"},
                "/home/ci/build/core.1182\n/home/ci/build/core.1190\n",
            ),
        ],
        "Move them, do not delete them.",
    ),
    (None, [("shell", {"command": "mv /home/ci/build/core.* /var/archive/"}, [])], None),
    (
        "",
        [
            ("shell", {"command": "df -h / | tail -1"}, "/dev/sda1        40G   12G   27G  31% /\n"),
            ("shell", {"command": "ls /var/archive"}, "core.1182  core.1190\n"),
            ("shell", {"command": "echo done"}, "done\n"),
        ],
        None,
    ),
)

DATABASE = (
    (
        "Two tables may answer this.",
        [
            (
                "query",
                {"sql": "SELECT name FROM sqlite_master WHERE type='table'", "limit": 20},
                '[{"name": "orders"}, {"name": "refunds"}]',
            )
        ],
        None,
    ),
    (
        None,
        [
            (
                "query",
                {"sql": "SELECT region, SUM(total) AS revenue FROM orders GROUP BY region"},
                '[{"region": "EU", "revenue": 18230.5}, {"region": "US", "revenue": 20114.0}, '
                '{"region": "华东", "revenue": 9077.25}]',
            ),
            ("query", {"sql": "SELECT COUNT(*) AS n FROM refunds WHERE region IS NULL"}, '[{"n": 0}]'),
        ],
        None,
    ),
    (
        "Now the refunds.",
        [("query", {"sql": "SELECT * FROM refunds WHERE day > '2026-11-01'", "limit": 100}, "[]")],
        "None at all in November?",
    ),
    (
        None,
        [
            ("query", {"sql": "SELECT MAX(day) AS last FROM refunds"}, '[{"last": "2026-10-29"}]'),
            ("query", {"sql": "SELECT MAX(day) AS last FROM orders"}, '[{"last": "2026-11-29"}]'),
        ],
        None,
    ),
)

CALENDAR = (
    (
        "我先看看这两天的日程。",
        [
            ("list_events", {"day": "2026-12-01"}, "09:30 项目例会（60 分钟）\n14:00 与客户通话（45 分钟）"),
            ("list_events", {"day": "2026-12-02"}, ""),
        ],
        None,
    ),
    (
        "周三全天有空。",
        [("weather", {"city": "杭州"}, "多云，7–13℃，东北风 2 级")],
        "那就周三上午十点，一小时。",
    ),
    (
        None,
        [
            (
                "create_event",
                {"title": "方案评审", "start": "2026-12-02T10:00", "minutes": 60},
                '{"id": "evt_831", "状态": "已创建"}',
            )
        ],
        "再给王老师发封邮件。",
    ),
    (
        None,
        [
            (
                "send_mail",
                {"to": "wang@example.com", "subject": "方案评审", "body": "您好，评审定在周三上午十点。"},
                None,
            )
        ],
        None,
    ),
)

SEARCH = (
    (
        "I'll search in both languages.",
        [
            (
                "web_search",
                {"query": "grpc message size limit default"},
                [
                    "1. gRPC documentation: the default limit for received messages is 4 MiB.",
                    "2. A forum answer: set max_receive_message_length on both sides.",
                ],
            ),
            (
                "web_search",
                {"query": "gRPC 消息大小 限制"},
                ["一、默认上限为 4 MiB。", "二、可在两端分别配置。", "三、流式传输不受影响。"],
            ),
        ],
        None,
    ),
    (
        None,
        [
            (
                "open_page",
                {"url": "https://example.com/grpc/limits"},
                "Received messages: 4194304 bytes. Sent messages: unlimited.",
            )
        ],
        "And for streaming?",
    ),
    (
        None,
        [
            (
                "web_search",
                {"query": "grpc streaming message limit"},
                ["The limit holds for each message of a stream.", ""],
            )
        ],
        None,
    ),
)


def browsing(first: int) -> tuple[Round, ...]:
    """A shop in the browser: screenshots alone, beside text, and of two calls at a time."""
    return (
        (
            "Opening the page.",
            [("open_page", {"url": "https://shop.example.com/cart"}, "200 OK, title: Cart")],
            None,
        ),
        (None, [("screenshot", {"full": False}, ["Viewport 1280x720:", picture(first)])], None),
        (
            "The button is below the fold.",
            [
                ("click", {"x": 640, "y": 702}, ["clicked", picture(first + 1), "the page scrolled"]),
                ("screenshot", {"full": True}, [picture(first + 2)]),
            ],
            "Is the total right?",
        ),
    )


PLOTS = (
    (
        "I'll draw both columns.",
        [
            ("plot", {"kind": "bar", "column": "revenue"}, ["revenue by region", picture(40)]),
            ("plot", {"kind": "line", "column": "refunds"}, ["refunds by day", picture(41)]),
            ("query", {"sql": "SELECT COUNT(*) AS n FROM orders"}, '[{"n": 1204}]'),
        ],
        None,
    ),
    (
        None,
        [("plot", {"kind": "pie", "column": "region"}, [picture(42), picture(43)])],
        "Which one for the report?",
    ),
)

CODER = "You are a careful software engineer. Work in small steps and run the tests."
OPERATOR = "You operate Linux servers. Never delete data."
ANALYST = "You answer questions about a database. Show the numbers you use."
SECRETARY = "你是日程助理，回答简洁，时间使用二十四小时制。"
BROWSER = "You drive a web browser. Look at the page before you act."

CODING = ("read_file", "search_code", "apply_patch", "run_tests", "shell")
PLANNING = ("list_events", "create_event", "weather", "send_mail")
BROWSING = ("open_page", "screenshot", "click", "type_text")


def stories(number: int, dialect: str) -> tuple[Story, ...]:
    """All stories in one dialect."""

    def story(
        name: str, system: str, question: Any, rounds: Sequence[Round], tools: Any, **facts: Any
    ) -> Story:
        return Story(f"{name}-{dialect}", dialect, system, question, rounds, tools, **facts)

    chart = ["Here is last year's chart:", picture(44), "Draw the new ones."]
    return (
        story("code", CODER, "The parser test fails on CI.", CODE, CODING, late=frozenset({1})),
        story("code-again", "", "`parse('1h31m')` gives 5400. <think> first.", CODE[1:], CODING),
        story("shell", OPERATOR, "The disk is full.", SHELL, ("shell",), late=frozenset({0, 4})),
        story("shell-again", OPERATOR, "磁盘快满了，请处理。", SHELL[1:], ("shell",), alone=False),
        story("database", ANALYST, "Revenue by region?", DATABASE, ("query",), late=frozenset({1, 3})),
        story("calendar", SECRETARY, "帮我安排一次方案评审。", CALENDAR, PLANNING, late=frozenset({0})),
        story("search", "", "What limits a gRPC message?", SEARCH, ("web_search", "open_page")),
        story("browsing", BROWSER, "Check my cart.", browsing(10 * number), BROWSING, late=frozenset({2})),
        story("plots", ANALYST, chart, PLOTS, ("plot", "query"), late=frozenset({0})),
    )


STORIES = tuple(
    story
    for number, dialect in enumerate(("chat", "responses", "messages"))
    for story in stories(number, dialect)
)


def requests(story: Story) -> list[dict[str, Any]]:
    """The requests of a story, each with the history up to it."""
    turns: list[Turn] = [Turn("user", story.question)]
    session = Session((), story.system, [(name, *TOOLS[name]) for name in story.tools])
    made = [replace(session, turns=tuple(turns))] if story.alone else []
    for number, (said, calls, asked) in enumerate(story.rounds):
        made_calls = [
            Call(f"call_{number}_{n}", name, arguments) for n, (name, arguments, _) in enumerate(calls)
        ]
        results = [Result(call.id, result) for call, (_, _, result) in zip(made_calls, calls, strict=True)]
        if number in story.late:
            results.reverse()
        turns.append(Turn("assistant", said, made_calls, results))
        made.append(replace(session, turns=tuple(turns)))
        if asked:
            turns.append(Turn("user", asked))
            made.append(replace(session, turns=tuple(turns)))
    return [
        {
            "name": f"{story.name}-{number}",
            "dialect": story.dialect,
            "images": [
                {"call": call, "size": [shown.height, shown.width], "colour": list(shown.colour)}
                for call, shown in one.pictures()
            ],
            "body": {"model": "demo", **write(one, story.dialect)},
        }
        for number, one in enumerate(made)
    ]


def main() -> None:
    """Writes one file per story."""
    for story in STORIES:
        text = json.dumps(requests(story), ensure_ascii=False, indent=1)
        (HERE / f"{story.name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
