"""Ordinary Python that is linted once when the analysis child starts, and never executed.

pylint's inferences about builtins and the standard library are inherited by each fork. Without them a first
check of 40 lines takes twice the processor time (measured, see ``lint``).
"""

SAMPLES = (
    """
import json
import os
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Item:
    name: str
    price: float = 0.0
    tags: list[str] = field(default_factory=list)

    def total(self, count=1):
        return round(self.price * count, 2)


class Store:
    limit = 10

    def __init__(self, path, strict=False):
        self.path = Path(path)
        self.strict = strict
        self.items: dict[str, Item] = {}

    def load(self) -> int:
        with open(self.path, encoding="utf-8") as handle:
            for number, line in enumerate(handle, start=1):
                match = re.match(r"(\\w+)=(\\d+)", line.strip())
                if match is None:
                    if self.strict:
                        raise ValueError(f"bad line {number}")
                    continue
                name, price = match.group(1), int(match.group(2))
                self.items[name] = Item(name, price)
        return len(self.items)

    @property
    def names(self):
        return sorted(self.items, key=lambda name: -self.items[name].price)

    @classmethod
    def empty(cls):
        return cls(os.devnull)

    @staticmethod
    def clean(text):
        return text.strip().lower().replace(" ", "_").split("_")


def totals(rows):
    sums = defaultdict(int)
    for key, value in rows:
        sums[key] += value
    best = max(sums.values(), default=0)
    return {key: value for key, value in sums.items() if value < best}, list(zip(sums, range(3)))


def read(path: str) -> dict[str, Any] | None:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        print(f"cannot read {path}: {error}", file=sys.stderr)
        return None
    finally:
        print("done")
    if not isinstance(data, dict) or len(data) == 0:
        return {}
    return data


def main(argv=None):
    args = argv or sys.argv[1:]
    store = Store(args[0] if args else os.environ.get("STORE", "."))
    count = store.load()
    while count > 0:
        count -= 1
        if count % 2 == 0 and count != 4:
            break
    words = [word for line in store.names for word in Store.clean(line)]
    print(Counter(words).most_common(3), sum(len(word) for word in words), totals([("a", 1)]))
    print(json.dumps({"count": count, "names": store.names}, indent=2), ",".join(words), read("x"))
    assert all(words) or any(words), "words"
    return 0


if __name__ == "__main__":
    sys.exit(main())
""",
    """
import argparse
import asyncio
import csv
import datetime
import functools
import itertools
import logging
import math
import random
import subprocess
import time
import unittest
from abc import ABC, abstractmethod
from contextlib import contextmanager
from enum import Enum

LOG = logging.getLogger(__name__)


class Color(Enum):
    RED = 1
    BLUE = 2


class Shape(ABC):
    @abstractmethod
    def area(self):
        pass


class Circle(Shape):
    def __init__(self, radius):
        super().__init__()
        self._radius = radius

    def area(self):
        return math.pi * self._radius**2

    def __repr__(self):
        return f"Circle({self._radius!r})"

    def __eq__(self, other):
        return isinstance(other, Circle) and self.area() == other.area()


class ProblemError(Exception):
    pass


@contextmanager
def timed(name):
    start = time.time()
    yield
    LOG.info("%s took %.2f s", name, time.time() - start)


@functools.lru_cache(maxsize=None)
def fibonacci(number):
    if number < 2:
        return number
    return fibonacci(number - 1) + fibonacci(number - 2)


async def fetch(delay):
    await asyncio.sleep(delay)
    return random.choice([1, 2, 3]), datetime.datetime.now() + datetime.timedelta(days=1)


async def gather():
    return await asyncio.gather(*(fetch(i) for i in range(3)), asyncio.create_task(fetch(1)))


def numbers(limit):
    for i in itertools.count():
        if i > limit:
            return
        yield i * i


def run(command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if not lines:
        raise ProblemError("nothing")
    return [int(line) for line in lines if line.isdigit()]


class CircleTest(unittest.TestCase):
    def setUp(self):
        self.circle = Circle(2)

    def test_area(self):
        self.assertAlmostEqual(self.circle.area(), 12.566, places=2)
        with self.assertRaises(ValueError):
            int("x")


def main():
    parser = argparse.ArgumentParser(description="sample")
    parser.add_argument("path", type=str, help="file")
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with timed("all"), open(args.path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        for row in numbers(args.count):
            writer.writerow([row, fibonacci(row), Color.RED.name])
    result = asyncio.run(gather())
    matrix = [[0] * 3 for _ in range(3)]
    matrix[0][1] = sorted(set(run(["ls"])), reverse=True)[:2]
    print(matrix, result, "%s" % len(matrix), "{}".format(matrix), Circle(1), min(1, 2), abs(-1))
    global LOG
    LOG = None


if __name__ == "__main__":
    main()
""",
)
