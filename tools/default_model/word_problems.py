# ruff: noqa: E501 - a sentence of a template stays on one line, to be read
"""Arithmetic word problems with worked solutions, made from templates of our own; the same for the same seed.

Every template draws its numbers so that each step is exact, then returns a question, the steps and the answer.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import gcd
from typing import NamedTuple

__all__ = ["TEMPLATES", "Problem", "generate"]


class Problem(NamedTuple):
    """`steps` are sentences in order; `closing` states the answer in words."""

    question: str
    steps: tuple[str, ...]
    answer: str
    closing: str


class Draw(random.Random):
    """Random choices that the templates share."""

    def n(self, low: int, high: int, step: int = 1) -> int:
        """A number from low to high, both included."""
        return self.randrange(low, high + 1, step)

    def pick(self, *options: str) -> str:
        """One of the options."""
        return self.choice(options)

    def who(self) -> tuple[str, str, str]:
        """A name with its subject and possessive pronouns."""
        if self.random() < 0.5:
            return self.choice(_WOMEN), "she", "her"
        return self.choice(_MEN), "he", "his"

    def two(self) -> tuple[str, str]:
        """Two different names."""
        first, second = self.sample(_WOMEN + _MEN, 2)
        return first, second

    def three(self) -> tuple[str, str, str]:
        """Three different names."""
        first, second, third = self.sample(_WOMEN + _MEN, 3)
        return first, second, third

    def thing(self) -> str:
        """Something that is counted."""
        return self.choice(_THINGS)

    def things(self) -> tuple[str, str]:
        """Two different things that are counted."""
        first, second = self.sample(_THINGS, 2)
        return first, second


_WOMEN = (
    "Amara Beatriz Chloe Daria Elena Fatima Greta Hana Ingrid Jasmine Keiko Leila Marta Nadia Olga Priya Rosa Sofia "
    "Tanya Uma Vera Wanda Ximena Yara Zoe Alice Clara Dorothy Eva Freya Gloria Helen Irene Julia Kamala Lucy Mei Nora"
).split()
_MEN = (
    "Adam Boris Carlos Dmitri Emil Farid Gustav Hugo Ivan Jonas Kofi Liam Mateo Nikhil Omar Pedro Quentin Rafael Sven "
    "Tomas Umar Viktor Walter Xavier Yusuf Zane Arthur Bruno Cyrus Diego Ethan Felix George Henrik Isaac Joel Kenji Leo"
).split()
_THINGS = (
    "apples|marbles|stickers|pencils|postcards|buttons|seashells|stamps|beads|cookies|oranges|books|candles|coins|"
    "notebooks|magnets|balloons|muffins|badges|crayons|puzzles|ribbons|walnuts|tulips|keys|bottles|plates|photos|"
    "trading cards|comic books|paper cranes|toy cars"
).split("|")
_NUMBER_WORDS = {2: "twice", 3: "three times", 4: "four times", 5: "five times", 6: "six times"}
_OPENINGS = (
    "Solve this problem step by step. ",
    "Can you help me with this? ",
    "Here is a math problem. ",
    "Please show your work. ",
)
_ENDINGS = (" Explain your reasoning.", " Show each step.", " Think step by step.", " Walk me through it.")

Template = Callable[[Draw], Problem]
TEMPLATES: list[Template] = []


def _template(function: Template) -> Template:
    TEMPLATES.append(function)
    return function


def _problem(question: str, steps: list[str], answer: object, closing: str) -> Problem:
    return Problem(question, tuple(steps), str(answer), closing)


def _fraction(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _ordinal_list(values: list[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" and {values[-1]}"


@_template
def _gives_some_away(d: Draw) -> Problem:
    name, sub, _ = d.who()
    a, b = d.n(30, 95), d.n(5, 14)
    c, t = d.n(6, 15), d.thing()
    return _problem(
        f"{name} has {a} {t}. {sub.capitalize()} gives {b} of them to a friend and then {d.pick('buys', 'finds', 'is given')} {c} more. How many {t} does {name} have now?",
        [
            f"After giving {b} away, {name} has {a} - {b} = {a - b} {t}.",
            f"With {c} more, {sub} has {a - b} + {c} = {a - b + c} {t}.",
        ],
        a - b + c,
        f"{name} now has {a - b + c} {t}.",
    )


@_template
def _boxes_and_loose(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    boxes, each, loose, t = d.n(3, 12), d.n(4, 15), d.n(2, 20), d.thing()
    total = boxes * each + loose
    return _problem(
        f"{name} {d.pick('packs', 'fills', 'prepares')} {boxes} boxes with {each} {t} in each, and {loose} {t} are left over. How many {t} are there {d.pick('in all', 'altogether', 'in total')}?",
        [
            f"The boxes hold {boxes} * {each} = {boxes * each} {t}.",
            f"Adding the {loose} left over gives {boxes * each} + {loose} = {total} {t}.",
        ],
        total,
        f"There are {total} {t} in total.",
    )


@_template
def _shop_change(d: Draw) -> Problem:
    name, sub, _ = d.who()
    (t, u), p, q = d.things(), d.n(2, 6), d.n(3, 9)
    i, j = d.n(2, 5), d.n(2, 4)
    cost = p * i + q * j
    note = next(x for x in (20, 50, 100) if x > cost)
    return _problem(
        f"At a market, {t} cost ${p} each and {u} cost ${q} each. {name} buys {i} {t} and {j} {u} and pays with a ${note} bill. How much change does {sub} get?",
        [
            f"The {t} cost {i} * {p} = ${i * p}.",
            f"The {u} cost {j} * {q} = ${j * q}.",
            f"Together that is {i * p} + {j * q} = ${cost}.",
            f"The change is {note} - {cost} = ${note - cost}.",
        ],
        note - cost,
        f"{name} gets ${note - cost} in change.",
    )


@_template
def _speed_two_legs(d: Draw) -> Problem:
    name, sub, _ = d.who()
    v, h, w, k = d.n(40, 70, 5), d.n(2, 4), d.n(45, 75, 5), d.n(1, 3)
    total = v * h + w * k
    unit = d.pick("miles", "kilometers")
    return _problem(
        f"{name} drives at {v} {unit} per hour for {h} hours and then at {w} {unit} per hour for {k} more {'hour' if k == 1 else 'hours'}. How many {unit} does {sub} drive?",
        [
            f"The first part is {v} * {h} = {v * h} {unit}.",
            f"The second part is {w} * {k} = {w * k} {unit}.",
            f"In total {sub} drives {v * h} + {w * k} = {total} {unit}.",
        ],
        total,
        f"{name} drives {total} {unit}.",
    )


@_template
def _train_time(d: Draw) -> Problem:
    v, hours, stop = d.n(50, 90, 10), d.n(2, 6), d.n(10, 50, 5)
    return _problem(
        f"A {d.pick('train', 'bus', 'coach')} travels {v * hours} kilometers at {v} kilometers per hour and stops for {stop} minutes on the way. How many minutes does the whole trip take?",
        [
            f"Driving takes {v * hours} / {v} = {hours} hours.",
            f"That is {hours} * 60 = {hours * 60} minutes.",
            f"With the stop it takes {hours * 60} + {stop} = {hours * 60 + stop} minutes.",
        ],
        hours * 60 + stop,
        f"The whole trip takes {hours * 60 + stop} minutes.",
    )


@_template
def _discount(d: Draw) -> Problem:
    name, sub, _ = d.who()
    price, percent, count = d.n(20, 120, 20), d.n(5, 50, 5), d.n(2, 5)
    off = price * percent // 100
    item = d.pick("jackets", "lamps", "chairs", "backpacks", "keyboards", "pairs of shoes")
    return _problem(
        f"A shop sells {item} for ${price} each. During a sale they are {percent}% off. {name} buys {count}. How much does {sub} pay?",
        [
            f"The discount on one is {price} * {percent} / 100 = ${off}.",
            f"So one costs {price} - {off} = ${price - off}.",
            f"{count} of them cost {count} * {price - off} = ${count * (price - off)}.",
        ],
        count * (price - off),
        f"{name} pays ${count * (price - off)}.",
    )


@_template
def _percent_of_class(d: Draw) -> Problem:
    total, percent = d.n(20, 200, 20), d.n(10, 90, 5)
    part = total * percent // 100
    group = d.pick(
        "students in a school choir",
        "members of a sports club",
        "people at a concert",
        "employees of a company",
        "campers at a summer camp",
    )
    what = d.pick("wear glasses", "own a bicycle", "play an instrument", "speak two languages", "bring their own lunch")
    return _problem(
        f"There are {total} {group}. {percent}% of them {what}. How many of them do not?",
        [
            f"{percent}% of {total} is {total} * {percent} / 100 = {part}.",
            f"The others are {total} - {part} = {total - part}.",
        ],
        total - part,
        f"{total - part} of them do not.",
    )


@_template
def _wages_overtime(d: Draw) -> Problem:
    name, sub, _her = d.who()
    rate, hours, extra, more = d.n(10, 24, 2), d.n(30, 40), d.n(2, 9), d.n(4, 12)
    pay = rate * hours + (rate + more) * extra
    return _problem(
        f"{name} earns ${rate} an hour. For overtime {sub} earns ${more} more an hour. Last week {sub} worked {hours} normal hours and {extra} hours of overtime. How much did {sub} earn?",
        [
            f"Normal pay is {rate} * {hours} = ${rate * hours}.",
            f"The overtime rate is {rate} + {more} = ${rate + more} an hour.",
            f"Overtime pay is {rate + more} * {extra} = ${(rate + more) * extra}.",
            f"In all {sub} earned {rate * hours} + {(rate + more) * extra} = ${pay}.",
        ],
        pay,
        f"{name} earned ${pay} last week.",
    )


@_template
def _ages_times(d: Draw) -> Problem:
    a, b = d.two()
    k, young, years = d.n(2, 5), d.n(4, 12), d.n(2, 10)
    old = k * young
    return _problem(
        f"{a} is {_NUMBER_WORDS[k]} as old as {b}. {b} is {young} years old. How old will {a} be in {years} years?",
        [
            f"{a} is {k} * {young} = {old} years old now.",
            f"In {years} years {a} will be {old} + {years} = {old + years}.",
        ],
        old + years,
        f"{a} will be {old + years} years old.",
    )


@_template
def _ages_sum(d: Draw) -> Problem:
    a, b, c = d.three()
    x, more, less = d.n(10, 30), d.n(2, 12), d.n(1, 8)
    total = x + (x + more) + (x - less)
    return _problem(
        f"{a} is {x} years old. {b} is {more} years older than {a}, and {c} is {less} {'year' if less == 1 else 'years'} younger than {a}. What is the sum of their ages?",
        [
            f"{b} is {x} + {more} = {x + more} years old.",
            f"{c} is {x} - {less} = {x - less} years old.",
            f"The sum is {x} + {x + more} + {x - less} = {total}.",
        ],
        total,
        f"The sum of their ages is {total}.",
    )


@_template
def _three_people_compare(d: Draw) -> Problem:
    a, b, c = d.three()
    t, x, k, less = d.thing(), d.n(5, 20), d.n(2, 4), d.n(1, 9)
    y = k * x
    z = y - less
    return _problem(
        f"{a} has {x} {t}. {b} has {_NUMBER_WORDS[k]} as many as {a}, and {c} has {less} fewer than {b}. How many {t} do they have together?",
        [
            f"{b} has {k} * {x} = {y} {t}.",
            f"{c} has {y} - {less} = {z} {t}.",
            f"Together they have {x} + {y} + {z} = {x + y + z} {t}.",
        ],
        x + y + z,
        f"Together they have {x + y + z} {t}.",
    )


@_template
def _equal_shares(d: Draw) -> Problem:
    name, sub, _ = d.who()
    people, each, eaten, t = d.n(3, 9), d.n(3, 12), d.n(2, 9), d.thing()
    total = people * each + eaten
    return _problem(
        f"{name} has {total} {t}. {sub.capitalize()} keeps {eaten} and shares the rest equally among {people} friends. How many {t} does each friend get?",
        [
            f"There are {total} - {eaten} = {people * each} {t} to share.",
            f"Each friend gets {people * each} / {people} = {each} {t}.",
        ],
        each,
        f"Each friend gets {each} {t}.",
    )


@_template
def _fraction_left(d: Draw) -> Problem:
    name, sub, _ = d.who()
    k, m, unit, t = d.n(2, 5), d.n(2, 4), d.n(2, 8), d.thing()
    total = k * m * unit
    rest = total - total // k
    while rest % m:
        total += k
        rest = total - total // k
    return _problem(
        f"{name} had {total} {t}. {sub.capitalize()} sold 1/{k} of them in the morning and 1/{m} of the remaining ones in the afternoon. How many {t} are left?",
        [
            f"In the morning {sub} sold {total} / {k} = {total // k} {t}.",
            f"That left {total} - {total // k} = {rest} {t}.",
            f"In the afternoon {sub} sold {rest} / {m} = {rest // m} {t}.",
            f"So {rest} - {rest // m} = {rest - rest // m} {t} are left.",
        ],
        rest - rest // m,
        f"{rest - rest // m} {t} are left.",
    )


@_template
def _reading_pages(d: Draw) -> Problem:
    name, sub, _ = d.who()
    per, days, rest, rate = d.n(12, 40), d.n(3, 7), d.n(2, 6), d.n(10, 30, 5)
    pages = per * days + rest * rate
    return _problem(
        f"{name} is reading a book of {pages} pages. {sub.capitalize()} read {per} pages a day for {days} days. If {sub} reads {rate} pages a day from now on, how many more days will it take to finish?",
        [
            f"So far {sub} has read {per} * {days} = {per * days} pages.",
            f"There are {pages} - {per * days} = {rest * rate} pages left.",
            f"It will take {rest * rate} / {rate} = {rest} more days.",
        ],
        rest,
        f"It will take {rest} more days.",
    )


@_template
def _saving_weeks(d: Draw) -> Problem:
    name, sub, _her = d.who()
    weeks, per, spend, start = d.n(4, 15), d.n(6, 25), d.n(1, 5), d.n(10, 60)
    goal = start + weeks * (per - spend)
    item = d.pick("a bicycle", "a guitar", "a camera", "a tent", "a telescope", "a skateboard")
    return _problem(
        f"{name} wants to buy {item} that costs ${goal}. {sub.capitalize()} already has ${start}. Each week {sub} earns ${per} and spends ${spend} of it. How many weeks until {sub} can afford it?",
        [
            f"{name} needs {goal} - {start} = ${goal - start} more.",
            f"Each week {sub} saves {per} - {spend} = ${per - spend}.",
            f"It takes {goal - start} / {per - spend} = {weeks} weeks.",
        ],
        weeks,
        f"{name} can afford it after {weeks} weeks.",
    )


@_template
def _rectangle_fence(d: Draw) -> Problem:
    w, h, p = d.n(5, 40), d.n(5, 40), d.n(2, 9)
    per = 2 * (w + h)
    return _problem(
        f"A rectangular {d.pick('garden', 'field', 'playground', 'yard')} is {w} meters long and {h} meters wide. A fence costs ${p} per meter. How much does it cost to fence it all around?",
        [f"The perimeter is 2 * ({w} + {h}) = {per} meters.", f"The fence costs {per} * {p} = ${per * p}."],
        per * p,
        f"The fence costs ${per * p}.",
    )


@_template
def _floor_tiles(d: Draw) -> Problem:
    w, h, box = d.n(4, 12), d.n(4, 12), d.n(3, 8)
    need = w * h
    boxes = -(-need // box)
    return _problem(
        f"A floor is {w} feet by {h} feet. One tile covers one square foot, and tiles come in boxes of {box}. How many boxes are needed?",
        [
            f"The area is {w} * {h} = {need} square feet, so {need} tiles are needed.",
            f"{need} / {box} = {need // box} with remainder {need % box}."
            if need % box
            else f"{need} / {box} = {boxes} exactly.",
            f"So {boxes} boxes are needed.",
        ],
        boxes,
        f"{boxes} boxes are needed.",
    )


@_template
def _two_rectangles(d: Draw) -> Problem:
    w, h, a, b = d.n(10, 25), d.n(10, 25), d.n(2, 8), d.n(2, 8)
    return _problem(
        f"A lawn is {w} meters by {h} meters. A pond of {a} meters by {b} meters is dug in it. How many square meters of grass remain?",
        [
            f"The lawn has {w} * {h} = {w * h} square meters.",
            f"The pond takes {a} * {b} = {a * b} square meters.",
            f"What remains is {w * h} - {a * b} = {w * h - a * b} square meters.",
        ],
        w * h - a * b,
        f"{w * h - a * b} square meters of grass remain.",
    )


@_template
def _box_volume(d: Draw) -> Problem:
    a, b, c, k = d.n(2, 6), d.n(2, 6), d.n(2, 6), d.n(2, 4)
    v = a * b * c * k**3
    return _problem(
        f"A crate is {a * k} cm by {b * k} cm by {c * k} cm. How many cubes with sides of {k} cm fit in it exactly?",
        [
            f"Along the sides fit {a * k} / {k} = {a}, {b * k} / {k} = {b} and {c * k} / {k} = {c} cubes.",
            f"In all that is {a} * {b} * {c} = {a * b * c} cubes.",
            f"(The volumes agree: {v} / {k**3} = {a * b * c}.)",
        ],
        a * b * c,
        f"{a * b * c} cubes fit in the crate.",
    )


@_template
def _average(d: Draw) -> Problem:
    name, _sub, her = d.who()
    count = d.n(3, 5)
    values = [d.n(60, 98) for _ in range(count - 1)]
    mean = d.n(70, 90)
    last = mean * count - sum(values)
    values.append(last)
    total = sum(values)
    return _problem(
        f"{name}'s scores in {count} {d.pick('tests', 'games', 'rounds')} were {_ordinal_list(values)}. What was {her} average score?",
        [
            f"The sum of the scores is {' + '.join(map(str, values))} = {total}.",
            f"There are {count} scores, so the average is {total} / {count} = {mean}.",
        ],
        mean,
        f"{name}'s average score was {mean}.",
    )


@_template
def _needed_score(d: Draw) -> Problem:
    name, sub, _ = d.who()
    values = [d.n(70, 90) for _ in range(3)]
    mean = d.n(78, 86)
    last = 4 * mean - sum(values)
    return _problem(
        f"{name} scored {_ordinal_list(values)} on three quizzes. What must {sub} score on the fourth quiz for an average of {mean}?",
        [
            f"Four quizzes with an average of {mean} add up to 4 * {mean} = {4 * mean}.",
            f"The first three add up to {' + '.join(map(str, values))} = {sum(values)}.",
            f"The fourth must be {4 * mean} - {sum(values)} = {last}.",
        ],
        last,
        f"{name} must score {last}.",
    )


@_template
def _recipe(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    base, cups, k, price = d.n(2, 8), d.n(2, 5), d.n(2, 6), d.n(1, 4)
    what, stuff = d.pick("pancakes", "cookies", "scones", "waffles"), d.pick("flour", "sugar", "milk", "oats")
    return _problem(
        f"A recipe for {base * 4} {what} needs {cups} cups of {stuff}. {name} wants to make {base * 4 * k} {what}. A cup of {stuff} costs ${price}. How much does the {stuff} cost?",
        [
            f"{name} makes {base * 4 * k} / {base * 4} = {k} times the recipe.",
            f"That needs {cups} * {k} = {cups * k} cups of {stuff}.",
            f"They cost {cups * k} * {price} = ${cups * k * price}.",
        ],
        cups * k * price,
        f"The {stuff} costs ${cups * k * price}.",
    )


@_template
def _tank(d: Draw) -> Problem:
    fill, leak, minutes, start = d.n(8, 20), d.n(1, 6), d.n(5, 30), d.n(10, 80)
    total = start + (fill - leak) * minutes
    return _problem(
        f"A tank holds {start} liters of water. A pipe adds {fill} liters a minute while {leak} {'liter leaks' if leak == 1 else 'liters leak'} out each minute. How many liters are in the tank after {minutes} minutes?",
        [
            f"Each minute the water grows by {fill} - {leak} = {fill - leak} liters.",
            f"In {minutes} minutes that is {fill - leak} * {minutes} = {(fill - leak) * minutes} liters.",
            f"So the tank holds {start} + {(fill - leak) * minutes} = {total} liters.",
        ],
        total,
        f"The tank then holds {total} liters.",
    )


@_template
def _tank_fill(d: Draw) -> Problem:
    a, b, minutes = d.n(3, 12), d.n(3, 12), d.n(6, 40)
    return _problem(
        f"One hose gives {a} gallons a minute and another gives {b} gallons a minute. How long do they need together to fill a pool of {(a + b) * minutes} gallons?",
        [
            f"Together they give {a} + {b} = {a + b} gallons a minute.",
            f"The pool takes {(a + b) * minutes} / {a + b} = {minutes} minutes.",
        ],
        minutes,
        f"They need {minutes} minutes.",
    )


@_template
def _workers(d: Draw) -> Problem:
    w, days, k = d.n(2, 8), d.n(3, 12), d.n(2, 4)
    return _problem(
        f"{w} {d.pick('painters', 'workers', 'gardeners')} finish a job in {days * k} days. How many days would {w * k} of them need, all working at the same pace?",
        [
            f"The job takes {w} * {days * k} = {w * days * k} days of one person's work.",
            f"{w * k} people need {w * days * k} / {w * k} = {days} days.",
        ],
        days,
        f"They would need {days} days.",
    )


@_template
def _machine_rate(d: Draw) -> Problem:
    per, minutes, machines, t = d.n(3, 15), d.n(10, 45, 5), d.n(2, 6), d.thing()
    total = per * minutes * machines
    return _problem(
        f"A machine makes {per} {t} a minute. How many {t} do {machines} such machines make in {minutes} minutes?",
        [
            f"One machine makes {per} * {minutes} = {per * minutes} {t} in {minutes} minutes.",
            f"{machines} machines make {machines} * {per * minutes} = {total} {t}.",
        ],
        total,
        f"They make {total} {t}.",
    )


@_template
def _parking(d: Draw) -> Problem:
    name, sub, _ = d.who()
    first, more, hours = d.n(3, 8), d.n(1, 4), d.n(3, 9)
    cost = first + more * (hours - 1)
    return _problem(
        f"Parking costs ${first} for the first hour and ${more} for each hour after that. {name} parks for {hours} hours. What does {sub} pay?",
        [
            f"After the first hour there are {hours} - 1 = {hours - 1} more hours.",
            f"They cost {hours - 1} * {more} = ${(hours - 1) * more}.",
            f"In total {sub} pays {first} + {(hours - 1) * more} = ${cost}.",
        ],
        cost,
        f"{name} pays ${cost}.",
    )


@_template
def _taxi(d: Draw) -> Problem:
    base, per, miles, tip = d.n(2, 6), d.n(2, 4), d.n(4, 20), d.n(1, 6)
    fare = base + per * miles
    name, _sub, _ = d.who()
    return _problem(
        f"A taxi charges ${base} plus ${per} per mile. {name} rides {miles} miles and adds a tip of ${tip}. How much does the ride cost {d.pick('in all', 'in total', 'altogether')}?",
        [
            f"The miles cost {miles} * {per} = ${miles * per}.",
            f"The fare is {base} + {miles * per} = ${fare}.",
            f"With the tip it is {fare} + {tip} = ${fare + tip}.",
        ],
        fare + tip,
        f"The ride costs ${fare + tip}.",
    )


@_template
def _tickets(d: Draw) -> Problem:
    adult, child, a, c = d.n(8, 20), d.n(3, 7), d.n(2, 6), d.n(2, 8)
    total = adult * a + child * c
    place = d.pick("zoo", "museum", "cinema", "water park", "theater")
    return _problem(
        f"Tickets for the {place} cost ${adult} for an adult and ${child} for a child. What do {a} adults and {c} children pay?",
        [
            f"The adults pay {a} * {adult} = ${a * adult}.",
            f"The children pay {c} * {child} = ${c * child}.",
            f"Together that is {a * adult} + {c * child} = ${total}.",
        ],
        total,
        f"They pay ${total}.",
    )


@_template
def _tickets_backwards(d: Draw) -> Problem:
    adult, child, a, c = d.n(8, 20), d.n(3, 7), d.n(2, 6), d.n(2, 9)
    total = adult * a + child * c
    return _problem(
        f"A group of {a} adults and some children paid ${total} for the circus. An adult ticket is ${adult} and a child ticket is ${child}. How many children were there?",
        [
            f"The adults paid {a} * {adult} = ${a * adult}.",
            f"The children paid {total} - {a * adult} = ${c * child}.",
            f"So there were {c * child} / {child} = {c} children.",
        ],
        c,
        f"There were {c} children.",
    )


@_template
def _profit(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    t, count, cost, gain, fee = d.thing(), d.n(10, 50), d.n(2, 9), d.n(2, 6), d.n(5, 20)
    profit = count * gain - fee
    return _problem(
        f"{name} buys {count} {t} for ${cost} each and sells all of them for ${cost + gain} each. The stall costs ${fee}. What is {d.pick('the profit', 'the total profit')}?",
        [
            f"The {t} cost {count} * {cost} = ${count * cost}.",
            f"{name} takes in {count} * {cost + gain} = ${count * (cost + gain)}.",
            f"The difference is {count * (cost + gain)} - {count * cost} = ${count * gain}.",
            f"After the stall is paid, {count * gain} - {fee} = ${profit} is left.",
        ],
        profit,
        f"The profit is ${profit}.",
    )


@_template
def _bakery(d: Draw) -> Problem:
    trays, each, sold, price = d.n(4, 12), d.n(6, 24, 2), d.n(10, 23), d.n(2, 5)
    made = trays * each
    left = made - sold
    what = d.pick("rolls", "croissants", "muffins", "pies", "bagels")
    return _problem(
        f"A baker makes {trays} trays of {each} {what}. {sold} are sold in the morning and the rest in the afternoon, all at ${price} each. How much money does the afternoon bring?",
        [
            f"The baker makes {trays} * {each} = {made} {what}.",
            f"In the afternoon {made} - {sold} = {left} are sold.",
            f"That brings {left} * {price} = ${left * price}.",
        ],
        left * price,
        f"The afternoon brings ${left * price}.",
    )


@_template
def _farm_legs(d: Draw) -> Problem:
    four, two = d.n(3, 20), d.n(5, 30)
    f, t = d.pick("cows", "sheep", "goats", "pigs", "horses"), d.pick("chickens", "ducks", "geese", "turkeys")
    legs = 4 * four + 2 * two
    return _problem(
        f"A farm has {four} {f} and {two} {t}. How many legs do they have {d.pick('in total', 'together', 'altogether')}?",
        [
            f"The {f} have {four} * 4 = {4 * four} legs.",
            f"The {t} have {two} * 2 = {2 * two} legs.",
            f"Together they have {4 * four} + {2 * two} = {legs} legs.",
        ],
        legs,
        f"They have {legs} legs.",
    )


@_template
def _heads_and_legs(d: Draw) -> Problem:
    four, two = d.n(3, 15), d.n(4, 20)
    heads, legs = four + two, 4 * four + 2 * two
    f, t = d.pick("rabbits", "goats", "sheep"), d.pick("hens", "ducks", "geese")
    return _problem(
        f"In a yard there are {f} and {t}: {heads} heads and {legs} legs. How many {f} are there?",
        [
            f"If all {heads} were {t}, there would be {heads} * 2 = {2 * heads} legs.",
            f"There are {legs} - {2 * heads} = {legs - 2 * heads} more legs than that.",
            f"Each of the {f} adds 2 legs, so there are {legs - 2 * heads} / 2 = {four} {f}.",
        ],
        four,
        f"There are {four} {f} (and {two} {t}).",
    )


@_template
def _egg_dozens(d: Draw) -> Problem:
    hens, eggs, days = d.n(4, 12), d.n(1, 2), 12 * d.n(1, 3)
    total = hens * eggs * days
    price = d.n(2, 5)
    return _problem(
        f"Each of {hens} hens lays {eggs} {'egg' if eggs == 1 else 'eggs'} a day. The farmer sells them by the dozen for ${price}. How much does the farmer earn in {days} days?",
        [
            f"In a day there are {hens} * {eggs} = {hens * eggs} eggs.",
            f"In {days} days there are {hens * eggs} * {days} = {total} eggs.",
            f"That is {total} / 12 = {total // 12} dozen.",
            f"The farmer earns {total // 12} * {price} = ${total // 12 * price}.",
        ],
        total // 12 * price,
        f"The farmer earns ${total // 12 * price}.",
    )


@_template
def _bus_stops(d: Draw) -> Problem:
    start, on1, off2, on2, off1 = d.n(15, 30), d.n(3, 12), d.n(2, 9), d.n(1, 8), d.n(3, 12)
    after = start + on1 - off1
    last = after + on2 - off2
    return _problem(
        f"A bus leaves with {start} passengers. At the first stop {off1} get off and {on1} get on. At the second stop {off2} get off and {on2} {'gets' if on2 == 1 else 'get'} on. How many passengers are on the bus now?",
        [
            f"After the first stop there are {start} - {off1} + {on1} = {after} passengers.",
            f"After the second stop there are {after} - {off2} + {on2} = {last} passengers.",
        ],
        last,
        f"There are {last} passengers on the bus.",
    )


@_template
def _school_buses(d: Draw) -> Problem:
    classes, size, teachers, seats = d.n(3, 8), d.n(18, 30), d.n(3, 9), d.n(35, 55, 5)
    people = classes * size + teachers
    buses = -(-people // seats)
    return _problem(
        f"{classes} classes of {size} students and {teachers} teachers go on a trip. A bus has {seats} seats. How many buses are needed?",
        [
            f"There are {classes} * {size} = {classes * size} students.",
            f"With the teachers there are {classes * size} + {teachers} = {people} people.",
            f"{people} / {seats} is {people / seats:.2f}, so {people // seats} {'bus is' if people // seats == 1 else 'buses are'} not enough."
            if people % seats
            else f"{people} / {seats} = {buses}.",
            f"They need {buses} buses.",
        ],
        buses,
        f"{buses} buses are needed.",
    )


@_template
def _theater_seats(d: Draw) -> Problem:
    rows, per, empty, price = d.n(8, 25), d.n(10, 24), d.n(5, 60), d.n(5, 15)
    seats = rows * per
    return _problem(
        f"A hall has {rows} rows of {per} seats. At tonight's show {empty} seats are empty. Each visitor paid ${price}. How much money was collected?",
        [
            f"The hall has {rows} * {per} = {seats} seats.",
            f"{seats} - {empty} = {seats - empty} visitors came.",
            f"They paid {seats - empty} * {price} = ${(seats - empty) * price}.",
        ],
        (seats - empty) * price,
        f"${(seats - empty) * price} was collected.",
    )


@_template
def _calories(d: Draw) -> Problem:
    name, sub, _ = d.who()
    burn, minutes, food, k = d.n(6, 14), d.n(20, 60, 5), d.n(80, 200, 10), d.n(1, 3)
    act = d.pick("running", "swimming", "cycling", "rowing")
    net = k * food - burn * minutes
    word = "more" if net >= 0 else "less"
    return _problem(
        f"{name} eats {k} {'bar' if k == 1 else 'bars'} of {food} calories each and burns {burn} calories a minute while {act} for {minutes} minutes. By how many calories do the two differ?",
        [
            f"{name} eats {k} * {food} = {k * food} calories.",
            f"{sub.capitalize()} burns {burn} * {minutes} = {burn * minutes} calories.",
            f"The difference is {max(k * food, burn * minutes)} - {min(k * food, burn * minutes)} = {abs(net)} calories.",
        ],
        abs(net),
        f"{name} ate {abs(net)} calories {word} than {sub} burned.",
    )


@_template
def _weekly_running(d: Draw) -> Problem:
    name, sub, _ = d.who()
    a, b, i = d.n(3, 9), d.n(5, 14), d.n(2, 5)
    total = a * i + b * (7 - i)
    weeks = d.n(2, 6)
    act = d.pick("runs", "walks", "cycles")
    return _problem(
        f"{name} {act} {a} miles on {i} days of the week and {b} miles on each of the other days. How many miles does {sub} cover in {weeks} weeks?",
        [
            f"On {i} days {sub} covers {i} * {a} = {i * a} miles.",
            f"The other {7 - i} days give {7 - i} * {b} = {(7 - i) * b} miles.",
            f"A week has {i * a} + {(7 - i) * b} = {total} miles.",
            f"{weeks} weeks have {weeks} * {total} = {weeks * total} miles.",
        ],
        weeks * total,
        f"{name} covers {weeks * total} miles.",
    )


@_template
def _doubling(d: Draw) -> Problem:
    name, sub, _ = d.who()
    start, days = d.n(2, 9), d.n(3, 5)
    values = [start * 2**i for i in range(days)]
    t = d.pick("push-ups", "pages", "laps", "words of Spanish", "practice problems")
    return _problem(
        f"On Monday {name} does {start} {t}, and every following day {sub} does twice as many as the day before. How many {t} does {sub} do in the first {days} days in total?",
        [
            *(f"On day {i + 1} it is {values[i - 1]} * 2 = {values[i]}." for i in range(1, days)),
            f"In total that is {' + '.join(map(str, values))} = {sum(values)}.",
        ],
        sum(values),
        f"In {days} days {name} does {sum(values)} {t}.",
    )


@_template
def _increasing(d: Draw) -> Problem:
    start, step, weeks = d.n(10, 40), d.n(2, 8), d.n(3, 5)
    values = [start + step * i for i in range(weeks)]
    t = d.thing()
    return _problem(
        f"A shop sells {start} {t} in the first week and {step} more each week than in the week before. How many {t} does it sell in {weeks} weeks?",
        [
            f"The weekly sales are {_ordinal_list(values)}.",
            f"Their sum is {' + '.join(map(str, values))} = {sum(values)}.",
        ],
        sum(values),
        f"The shop sells {sum(values)} {t}.",
    )


@_template
def _ratio(d: Draw) -> Problem:
    a, b, unit = d.n(2, 7), d.n(2, 7), d.n(3, 12)
    x, y = d.pick("red", "green", "black"), d.pick("blue", "white", "yellow")
    t = d.thing()
    total = (a + b) * unit
    return _problem(
        f"In a box the ratio of {x} to {y} {t} is {a}:{b}. There are {total} {t} in all. How many are {x}?",
        [
            f"There are {a} + {b} = {a + b} parts.",
            f"One part is {total} / {a + b} = {unit} {t}.",
            f"The {x} ones are {a} * {unit} = {a * unit}.",
        ],
        a * unit,
        f"{a * unit} of the {t} are {x}.",
    )


@_template
def _split_money_ratio(d: Draw) -> Problem:
    p, q = d.two()
    a, b, unit = d.n(3, 9), d.n(1, 2), d.n(5, 25)
    return _problem(
        f"{p} and {q} share ${(a + b) * unit} so that {p} gets ${a} for every ${b} that {q} gets. How much more does {p} get than {q}?",
        [
            f"There are {a} + {b} = {a + b} equal parts of {(a + b) * unit} / {a + b} = ${unit}.",
            f"{p} gets {a} * {unit} = ${a * unit}.",
            f"{q} gets {b} * {unit} = ${b * unit}.",
            f"The difference is {a * unit} - {b * unit} = ${(a - b) * unit}.",
        ],
        (a - b) * unit,
        f"{p} gets ${(a - b) * unit} more than {q}.",
    )


@_template
def _sum_and_difference(d: Draw) -> Problem:
    p, q = d.two()
    low, diff, t = d.n(5, 40), d.n(2, 20), d.thing()
    total = 2 * low + diff
    return _problem(
        f"{p} and {q} have {total} {t} together. {p} has {diff} more than {q}. How many {t} does {q} have?",
        [
            f"Without the extra {diff} they would have equal numbers: {total} - {diff} = {2 * low}.",
            f"Half of that is {2 * low} / 2 = {low}.",
            f"So {q} has {low} {t} and {p} has {low} + {diff} = {low + diff}.",
        ],
        low,
        f"{q} has {low} {t}.",
    )


@_template
def _unknown_start(d: Draw) -> Problem:
    name, sub, _ = d.who()
    left, half, spent = d.n(5, 30), 2, d.n(4, 20)
    before = left + spent
    start = before * half
    return _problem(
        f"{name} spent half of {d.pick('the money', 'all the money')} {sub} had on a gift and then ${spent} on lunch. Now {sub} has ${left}. How much did {sub} have at first?",
        [
            f"Before lunch {sub} had {left} + {spent} = ${before}.",
            f"That was half of the money, so at first {sub} had {before} * 2 = ${start}.",
        ],
        start,
        f"{name} had ${start} at first.",
    )


@_template
def _phone_plan(d: Draw) -> Problem:
    base, per, minutes, free = d.n(10, 40, 5), d.n(5, 20, 5), d.n(120, 400, 20), 100
    extra = minutes - free
    cents = extra * per
    while cents % 100:
        minutes += 20
        extra = minutes - free
        cents = extra * per
    total = base + cents // 100
    return _problem(
        f"A phone plan costs ${base} a month with {free} free minutes. Each further minute costs {per} cents. What is the bill for {minutes} minutes?",
        [
            f"{minutes} - {free} = {extra} minutes are not free.",
            f"They cost {extra} * {per} = {cents} cents, which is ${cents // 100}.",
            f"The bill is {base} + {cents // 100} = ${total}.",
        ],
        total,
        f"The bill is ${total}.",
    )


@_template
def _coins(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    q, di, n = d.n(2, 12), d.n(2, 15), d.n(1, 12)
    total = 25 * q + 10 * di + 5 * n
    return _problem(
        f"{name} has {q} quarters, {di} dimes and {n} {'nickel' if n == 1 else 'nickels'}. How many cents is that?",
        [
            f"The quarters are {q} * 25 = {25 * q} cents.",
            f"The dimes are {di} * 10 = {10 * di} cents.",
            f"The nickels are {n} * 5 = {5 * n} cents.",
            f"Together: {25 * q} + {10 * di} + {5 * n} = {total} cents.",
        ],
        total,
        f"{name} has {total} cents.",
    )


@_template
def _clock(d: Draw) -> Problem:
    name, sub, _ = d.who()
    h, m, parts = d.n(7, 10), d.n(0, 45, 15), [d.n(15, 55, 5) for _ in range(3)]
    total = sum(parts)
    end = h * 60 + m + total
    what = d.sample(["homework", "the dishes", "piano practice", "a walk", "cleaning the kitchen", "ironing"], 3)
    return _problem(
        f"{name} starts at {h}:{m:02d} a.m. and spends {parts[0]} minutes on {what[0]}, {parts[1]} minutes on {what[1]} and {parts[2]} minutes on {what[2]}. For how many minutes is {sub} busy, and when is {sub} done?",
        [
            f"The times add up to {parts[0]} + {parts[1]} + {parts[2]} = {total} minutes.",
            f"{total} minutes are {total // 60} {'hour' if total // 60 == 1 else 'hours'} and {total % 60} minutes.",
            f"Counting from {h}:{m:02d}, {sub} is done at {(end // 60 - 1) % 12 + 1}:{end % 60:02d} {'a.m.' if end < 720 else 'p.m.'}",
        ],
        total,
        f"{name} is busy for {total} minutes and is done at {(end // 60 - 1) % 12 + 1}:{end % 60:02d}.",
    )


@_template
def _garden_rows(d: Draw) -> Problem:
    rows, per, dead, fruit = d.n(4, 15), d.n(5, 15), d.n(2, 15), d.n(3, 12)
    plants = rows * per
    plant, crop = d.choice(
        [
            ("tomato plants", "tomatoes"),
            ("pepper plants", "peppers"),
            ("apple trees", "apples"),
            ("squash plants", "squashes"),
        ]
    )
    return _problem(
        f"A gardener has {rows} rows of {per} {plant}. A frost kills {dead} of them. Each of the others bears {fruit} {crop}. How many {crop} are there?",
        [
            f"There were {rows} * {per} = {plants} {plant}.",
            f"{plants} - {dead} = {plants - dead} survive.",
            f"They bear {plants - dead} * {fruit} = {(plants - dead) * fruit} {crop}.",
        ],
        (plants - dead) * fruit,
        f"There are {(plants - dead) * fruit} {crop}.",
    )


@_template
def _library(d: Draw) -> Problem:
    start, out, back, new = d.n(200, 900, 10), d.n(30, 90), d.n(10, 60), d.n(12, 48, 12)
    end = start - out + back + new
    return _problem(
        f"A library has {start} books on its shelves. On Monday {out} are borrowed. On Tuesday {back} are returned and {new} new ones arrive. How many books are on the shelves then?",
        [
            f"After Monday there are {start} - {out} = {start - out} books.",
            f"With the returned ones there are {start - out} + {back} = {start - out + back}.",
            f"With the new ones there are {start - out + back} + {new} = {end} books.",
        ],
        end,
        f"There are {end} books on the shelves.",
    )


@_template
def _temperature(d: Draw) -> Problem:
    start, rise, fall, hours = d.n(-10, 15), d.n(2, 5), d.n(6, 18), d.n(2, 4)
    top = start + rise * hours
    city = d.pick("Oslo", "Denver", "Sapporo", "Quito", "Geneva", "Halifax")
    return _problem(
        f"At dawn it was {start} degrees in {city}. The temperature rose {rise} degrees an hour for {hours} hours and then fell by {fall} degrees. What is the temperature now?",
        [
            f"It rose by {rise} * {hours} = {rise * hours} degrees to {start} + {rise * hours} = {top} degrees.",
            f"Then it fell to {top} - {fall} = {top - fall} degrees.",
        ],
        top - fall,
        f"It is now {top - fall} degrees.",
    )


@_template
def _meet(d: Draw) -> Problem:
    p, q = d.two()
    a, b, hours = d.n(3, 15), d.n(3, 15), d.n(2, 6)
    return _problem(
        f"{p} and {q} start {(a + b) * hours} kilometers apart and move toward each other, {p} at {a} km/h and {q} at {b} km/h. After how many hours do they meet?",
        [
            f"Each hour the distance shrinks by {a} + {b} = {a + b} kilometers.",
            f"They meet after {(a + b) * hours} / {a + b} = {hours} hours.",
        ],
        hours,
        f"They meet after {hours} hours.",
    )


@_template
def _catch_up(d: Draw) -> Problem:
    p, q = d.two()
    slow, gain, hours = d.n(4, 20), d.n(2, 6), d.n(2, 5)
    lead = gain * hours
    return _problem(
        f"{p} is {lead} miles ahead of {q}. {p} goes {slow} miles an hour and {q} goes {slow + gain} miles an hour in the same direction. How far does {q} travel until {q} catches up?",
        [
            f"{q} gains {slow + gain} - {slow} = {gain} miles every hour.",
            f"Catching up takes {lead} / {gain} = {hours} hours.",
            f"In that time {q} travels {slow + gain} * {hours} = {(slow + gain) * hours} miles.",
        ],
        (slow + gain) * hours,
        f"{q} travels {(slow + gain) * hours} miles.",
    )


@_template
def _rope(d: Draw) -> Problem:
    pieces, cm, left = d.n(4, 15), d.n(15, 60, 5), d.n(5, 40, 5)
    total = pieces * cm + left
    return _problem(
        f"A {d.pick('rope', 'wire', 'ribbon', 'plank')} is {total} centimeters long. {pieces} pieces of {cm} centimeters are cut off. How many centimeters remain?",
        [
            f"The pieces take {pieces} * {cm} = {pieces * cm} centimeters.",
            f"{total} - {pieces * cm} = {left} centimeters remain.",
        ],
        left,
        f"{left} centimeters remain.",
    )


@_template
def _interest(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    capital, rate, years = d.n(200, 2000, 100), d.n(2, 9), d.n(2, 6)
    per = capital * rate // 100
    return _problem(
        f"{name} puts ${capital} in an account with {rate}% simple interest a year. How much is in the account after {years} years?",
        [
            f"The interest of one year is {capital} * {rate} / 100 = ${per}.",
            f"In {years} years it is {per} * {years} = ${per * years}.",
            f"The account then holds {capital} + {per * years} = ${capital + per * years}.",
        ],
        capital + per * years,
        f"The account holds ${capital + per * years}.",
    )


@_template
def _percent_change(d: Draw) -> Problem:
    base, up, down = d.n(100, 900, 100), d.n(10, 50, 10), d.n(10, 40, 10)
    high = base + base * up // 100
    return _problem(
        f"A {d.pick('laptop', 'painting', 'sofa', 'drone', 'watch')} costs ${base}. Its price rises by {up}% and is then lowered by {down}%. What is the final price?",
        [
            f"The rise is {base} * {up} / 100 = ${base * up // 100}, so the price becomes {base} + {base * up // 100} = ${high}.",
            f"The cut is {high} * {down} / 100 = ${high * down // 100}."
            if high * down % 100 == 0
            else f"The cut is {high} * {down} / 100 = ${high * down / 100:.2f}.",
            f"The final price is {high} - {high * down / 100:g} = ${high - high * down / 100:g}.",
        ],
        f"{high - high * down / 100:g}",
        f"The final price is ${high - high * down / 100:g}.",
    )


@_template
def _team_points(d: Draw) -> Problem:
    p, q, r = d.three()
    x, more, k = d.n(6, 20), d.n(2, 9), d.n(2, 3)
    y = x + more
    z = (x + y) * k
    return _problem(
        f"In a {d.pick('basketball', 'handball', 'board', 'card')} game {p} scored {x} points and {q} scored {more} more than {p}. {r} scored {_NUMBER_WORDS[k]} as many as {p} and {q} together. How many points did {r} score?",
        [
            f"{q} scored {x} + {more} = {y} points.",
            f"{p} and {q} together scored {x} + {y} = {x + y} points.",
            f"{r} scored {k} * {x + y} = {z} points.",
        ],
        z,
        f"{r} scored {z} points.",
    )


@_template
def _goals(d: Draw) -> Problem:
    wins, draws, losses = d.n(4, 15), d.n(1, 8), d.n(1, 8)
    points = 3 * wins + draws
    return _problem(
        f"A team gets 3 points for a win, 1 for a draw and none for a loss. It played {wins + draws + losses} matches, won {wins} and lost {losses}. How many points does it have?",
        [
            f"It drew {wins + draws + losses} - {wins} - {losses} = {draws} {'match' if draws == 1 else 'matches'}.",
            f"The wins give {wins} * 3 = {3 * wins} points.",
            f"With the draws it has {3 * wins} + {draws} = {points} points.",
        ],
        points,
        f"The team has {points} points.",
    )


@_template
def _pets_food(d: Draw) -> Problem:
    name, sub, _ = d.who()
    dogs, cats, a, b, days = d.n(1, 4), d.n(1, 5), d.n(2, 6), d.n(1, 3), d.n(5, 30, 5)
    per = dogs * a + cats * b
    return _problem(
        f"{name} has {dogs} {'dog' if dogs == 1 else 'dogs'} and {cats} {'cat' if cats == 1 else 'cats'}. A dog eats {a} cups of food a day and a cat eats {b}. How many cups does {name} need for {days} days?",
        [
            f"The dogs eat {dogs} * {a} = {dogs * a} cups a day.",
            f"The cats eat {cats} * {b} = {cats * b} cups a day.",
            f"That is {dogs * a} + {cats * b} = {per} cups a day.",
            f"For {days} days {sub} needs {per} * {days} = {per * days} cups.",
        ],
        per * days,
        f"{name} needs {per * days} cups.",
    )


@_template
def _water_per_day(d: Draw) -> Problem:
    name, sub, _ = d.who()
    glass, count, days, bottle = d.n(200, 300, 50), d.n(4, 8, 2), d.n(5, 10, 5), 500
    ml = glass * count * days
    while ml % bottle:
        days += 1
        ml = glass * count * days
    return _problem(
        f"{name} drinks {count} glasses of {glass} milliliters a day. How many bottles of {bottle} milliliters is that in {days} days?",
        [
            f"In a day {sub} drinks {count} * {glass} = {count * glass} milliliters.",
            f"In {days} days that is {count * glass} * {days} = {ml} milliliters.",
            f"That is {ml} / {bottle} = {ml // bottle} bottles.",
        ],
        ml // bottle,
        f"That is {ml // bottle} bottles.",
    )


@_template
def _stairs(d: Draw) -> Problem:
    name, sub, _ = d.who()
    floors, steps, times = d.n(3, 12), d.n(12, 22), d.n(2, 6)
    return _problem(
        f"There are {steps} steps between two floors. {name} climbs {floors} floors {times} times a day. How many steps does {sub} climb in a week of 5 days?",
        [
            f"One climb has {floors} * {steps} = {floors * steps} steps.",
            f"A day has {times} * {floors * steps} = {times * floors * steps} steps.",
            f"Five days have 5 * {times * floors * steps} = {5 * times * floors * steps} steps.",
        ],
        5 * times * floors * steps,
        f"{name} climbs {5 * times * floors * steps} steps.",
    )


@_template
def _posts(d: Draw) -> Problem:
    gap, count = d.n(2, 9), d.n(6, 40)
    length = gap * (count - 1)
    return _problem(
        f"{d.pick('Lamps', 'Trees', 'Posts', 'Flags')} stand along a straight road of {length} meters, one every {gap} meters, with one at each end. How many are there?",
        [
            f"There are {length} / {gap} = {count - 1} gaps.",
            f"With one at each end there is one more than gaps: {count - 1} + 1 = {count}.",
        ],
        count,
        f"There are {count} of them.",
    )


@_template
def _laundry(d: Draw) -> Problem:
    shirts, trousers, load, price = d.n(8, 30), d.n(4, 15), d.n(4, 9), d.n(2, 5)
    total = shirts + trousers
    loads = -(-total // load)
    return _problem(
        f"{shirts} shirts and {trousers} pairs of trousers must be washed. A machine takes {load} pieces at a time and costs ${price} a load. What does the washing cost?",
        [
            f"There are {shirts} + {trousers} = {total} pieces.",
            f"{total} pieces need {loads} loads of up to {load}, since {loads - 1} loads hold only {(loads - 1) * load}.",
            f"The washing costs {loads} * {price} = ${loads * price}.",
        ],
        loads * price,
        f"The washing costs ${loads * price}.",
    )


@_template
def _two_offers(d: Draw) -> Problem:
    a_count, a_each, b_each = d.n(3, 8), d.n(4, 9), d.n(2, 3)
    t = d.thing()
    total = a_count * d.n(3, 6)
    single, pack = a_each, a_each * a_count - b_each * a_count // 2
    save = total * single - total // a_count * pack
    return _problem(
        f"A shop sells {t} for ${single} each or ${pack} for a pack of {a_count}. How much does one save by buying {total} {t} in packs?",
        [
            f"Singly they cost {total} * {single} = ${total * single}.",
            f"{total} {t} are {total} / {a_count} = {total // a_count} packs.",
            f"The packs cost {total // a_count} * {pack} = ${total // a_count * pack}.",
            f"One saves {total * single} - {total // a_count * pack} = ${save}.",
        ],
        save,
        f"One saves ${save}.",
    )


@_template
def _survey(d: Draw) -> Problem:
    a, b, both, none = d.n(15, 40), d.n(15, 40), d.n(4, 12), d.n(2, 15)
    total = a + b - both + none
    x, y = d.choice(
        [
            ("tea", "coffee"),
            ("cats", "dogs"),
            ("football", "tennis"),
            ("jazz", "folk music"),
            ("the sea", "the mountains"),
        ]
    )
    return _problem(
        f"In a survey {a} people like {x}, {b} like {y}, {both} of them like both, and {none} like neither. How many people were asked?",
        [
            f"{a} + {b} = {a + b} counts those who like both twice.",
            f"So {a + b} - {both} = {a + b - both} people like at least one.",
            f"With those who like neither there are {a + b - both} + {none} = {total} people.",
        ],
        total,
        f"{total} people were asked.",
    )


@_template
def _handshakes(d: Draw) -> Problem:
    n = d.n(4, 15)
    what = d.pick(
        "shakes hands once with every other person",
        "plays one game against every other person",
        "exchanges one call with every other person",
    )
    return _problem(
        f"In a group of {n} people everyone {what}. How many {what.split()[1] if what.startswith('shakes') else what.split()[2] + 's'} does that make?".replace(
            "hands does", "handshakes does"
        ),
        [
            f"Each of the {n} people meets {n} - 1 = {n - 1} others, which gives {n} * {n - 1} = {n * (n - 1)}.",
            f"Every pair was counted twice, so it is {n * (n - 1)} / 2 = {n * (n - 1) // 2}.",
        ],
        n * (n - 1) // 2,
        f"It makes {n * (n - 1) // 2}.",
    )


@_template
def _outfits(d: Draw) -> Problem:
    a, b, c = d.n(2, 8), d.n(2, 6), d.n(2, 4)
    name, sub, _ = d.who()
    return _problem(
        f"{name} owns {a} shirts, {b} pairs of trousers and {c} hats. In how many ways can {sub} choose one of each?",
        [
            f"Shirts and trousers can be combined in {a} * {b} = {a * b} ways.",
            f"With the hats there are {a * b} * {c} = {a * b * c} ways.",
        ],
        a * b * c,
        f"There are {a * b * c} ways.",
    )


@_template
def _marble_probability(d: Draw) -> Problem:
    r, b, g = d.n(2, 9), d.n(2, 9), d.n(1, 9)
    total = r + b + g
    p = Fraction(r, total)
    return _problem(
        f"A bag holds {r} red, {b} blue and {g} green marbles. One is drawn at random. What is the probability that it is red?",
        [
            f"There are {r} + {b} + {g} = {total} marbles.",
            f"{r} of them are red, so the probability is {r}/{total}."
            + (f" This reduces to {_fraction(p)}." if p.denominator != total else ""),
        ],
        _fraction(p),
        f"The probability is {_fraction(p)}.",
    )


@_template
def _linear_equation(d: Draw) -> Problem:
    a, x, b = d.n(2, 12), d.n(-9, 15), d.n(1, 30)
    c = a * x + b
    return _problem(
        d.pick(
            f"Solve for x: {a}x + {b} = {c}.",
            f"What value of x satisfies {a}x + {b} = {c}?",
            f"Find x if {a}x + {b} = {c}.",
        ),
        [
            f"Subtract {b} from both sides: {a}x = {c} - {b} = {c - b}.",
            f"Divide both sides by {a}: x = {c - b} / {a} = {x}.",
            f"Check: {a} * {x} + {b} = {a * x} + {b} = {c}.",
        ],
        x,
        f"The solution is x = {x}.",
    )


@_template
def _equation_both_sides(d: Draw) -> Problem:
    a, c, x, b = d.n(5, 12), d.n(2, 4), d.n(-6, 12), d.n(1, 20)
    e = (a - c) * x + b
    return _problem(
        f"Solve the equation {a}x + {b} = {c}x {'+' if e >= 0 else '-'} {abs(e)}.",
        [
            f"Subtract {c}x from both sides: {a - c}x + {b} = {e}.",
            f"Subtract {b}: {a - c}x = {e - b}.",
            f"Divide by {a - c}: x = {x}.",
        ],
        x,
        f"x = {x}.",
    )


@_template
def _number_riddle(d: Draw) -> Problem:
    x, k, a, b = d.n(3, 30), d.n(2, 6), d.n(2, 20), 2
    if (x * k + a) % b:
        a += 1
    y = (x * k + a) // b
    return _problem(
        f"{d.pick('I think of', 'Someone thinks of')} a number, multiply it by {k}, add {a} and divide by {b}. The result is {y}. What was the number?".replace(
            "Someone thinks of a number, multiply", "Take a number, multiply"
        ),
        [
            f"Undo the division: {y} * {b} = {y * b}.",
            f"Undo the addition: {y * b} - {a} = {x * k}.",
            f"Undo the multiplication: {x * k} / {k} = {x}.",
        ],
        x,
        f"The number was {x}.",
    )


@_template
def _consecutive(d: Draw) -> Problem:
    x, n = d.n(4, 60), d.choice([3, 5])
    values = [x + i for i in range(n)]
    mid = values[n // 2]
    return _problem(
        f"The sum of {n} consecutive whole numbers is {sum(values)}. What is the largest of them?",
        [
            f"The middle number is the average: {sum(values)} / {n} = {mid}.",
            f"The largest is {n // 2} more: {mid} + {n // 2} = {values[-1]}.",
        ],
        values[-1],
        f"The largest number is {values[-1]}.",
    )


@_template
def _fraction_sum(d: Draw) -> Problem:
    p, q = Fraction(d.n(1, 5), d.n(2, 9)), Fraction(d.n(1, 5), d.n(2, 9))
    while p.denominator == 1 or q.denominator == 1 or p.denominator == q.denominator:
        p, q = Fraction(d.n(1, 5), d.n(2, 9)), Fraction(d.n(1, 5), d.n(2, 9))
    den = p.denominator * q.denominator // gcd(p.denominator, q.denominator)
    a, b = p.numerator * (den // p.denominator), q.numerator * (den // q.denominator)
    raw = f"{a + b}/{den}"
    steps = [
        f"The common denominator is {den}.",
        f"{_fraction(p)} = {a}/{den} and {_fraction(q)} = {b}/{den}.",
        f"The sum is {a}/{den} + {b}/{den} = {raw}.",
    ]
    if _fraction(p + q) != raw:
        steps.append(f"This simplifies to {_fraction(p + q)}.")
    return _problem(
        f"{d.pick('What is', 'Compute', 'Add:')} {_fraction(p)} + {_fraction(q)}?".replace(
            "Compute", "How much is"
        ).replace("Add:", "What is the sum"),
        steps,
        _fraction(p + q),
        f"The sum is {_fraction(p + q)}.",
    )


@_template
def _long_multiplication(d: Draw) -> Problem:
    a, b = d.n(12, 99), d.n(11, 99)
    tens, ones = b // 10 * 10, b % 10
    steps = [
        f"Split {b} into {tens} and {ones}.",
        f"{a} * {tens} = {a * tens}.",
        f"{a} * {ones} = {a * ones}.",
        f"{a * tens} + {a * ones} = {a * b}.",
    ]
    return _problem(
        d.pick(f"What is {a} times {b}?", f"Calculate {a} * {b}.", f"Multiply {a} by {b}."),
        steps,
        a * b,
        f"{a} times {b} is {a * b}.",
    )


@_template
def _long_division(d: Draw) -> Problem:
    b, tens, ones, rest = d.n(3, 12), d.n(1, 9), d.n(0, 9), d.n(0, 2)
    q = 10 * tens + ones
    a = b * q + rest
    return _problem(
        d.pick(
            f"Divide {a} by {b} and give the quotient and the remainder.",
            f"What is {a} divided by {b}, with remainder?",
        ),
        [
            f"{b} goes into {a} at least {10 * tens} times: {b} * {10 * tens} = {b * 10 * tens}, and {a} - {b * 10 * tens} = {a - b * 10 * tens} is left.",
            f"{b} goes into {a - b * 10 * tens} {ones} times: {b} * {ones} = {b * ones}.",
            f"The remainder is {a - b * 10 * tens} - {b * ones} = {rest}.",
        ],
        q,
        f"The quotient is {q} and the remainder is {rest}.",
    )


@_template
def _order_of_operations(d: Draw) -> Problem:
    a, b, c, e = d.n(2, 20), d.n(2, 9), d.n(2, 9), d.n(2, 9)
    value = a + b * (c + e)
    return _problem(
        d.pick(f"Evaluate {a} + {b} * ({c} + {e}).", f"What is {a} + {b} * ({c} + {e})?"),
        [
            f"First the parentheses: {c} + {e} = {c + e}.",
            f"Then the product: {b} * {c + e} = {b * (c + e)}.",
            f"Then the sum: {a} + {b * (c + e)} = {value}.",
        ],
        value,
        f"The value is {value}.",
    )


@_template
def _gcd_lcm(d: Draw) -> Problem:
    g, a, b = d.n(2, 12), d.n(2, 9), d.n(2, 9)
    x, y = g * a, g * b + (g if a == b else 0)
    steps, u, v = [], max(x, y), min(x, y)
    while v:
        steps.append(f"{u} = {u // v} * {v} + {u % v}.")
        u, v = v, u % v
    return _problem(
        f"{d.pick('Use the Euclidean algorithm to find', 'Find')} the greatest common divisor of {x} and {y}.",
        [*steps, f"The last remainder that is not zero is {u}."],
        u,
        f"The greatest common divisor is {u}.",
    )


@_template
def _common_multiple(d: Draw) -> Problem:
    a, b = d.n(4, 15), d.n(4, 15)
    while a == b:
        b = d.n(4, 15)
    g = gcd(a, b)
    lcm = a * b // g
    return _problem(
        f"One {d.pick('bell rings', 'light blinks', 'bus leaves', 'alarm sounds')} every {a} minutes and another every {b} minutes. Both happen together now. After how many minutes do they next happen together?",
        [
            f"We need the least common multiple of {a} and {b}.",
            f"Their greatest common divisor is {g}, so it is {a} * {b} / {g} = {lcm}.",
        ],
        lcm,
        f"They happen together again after {lcm} minutes.",
    )


@_template
def _unit_conversion(d: Draw) -> Problem:
    big, small, factor = d.choice(
        [
            ("kilograms", "grams", 1000),
            ("hours", "minutes", 60),
            ("feet", "inches", 12),
            ("meters", "centimeters", 100),
            ("days", "hours", 24),
            ("pounds", "ounces", 16),
            ("minutes", "seconds", 60),
            ("weeks", "days", 7),
            ("gallons", "quarts", 4),
            ("yards", "feet", 3),
        ]
    )
    a, b = d.n(2, 20), d.n(1, factor - 1)
    return _problem(
        f"How many {small} are {a} {big} and {b} {small}?",
        [
            f"One of the {big} is {factor} {small}, so {a} {big} are {a} * {factor} = {a * factor} {small}.",
            f"Adding the rest: {a * factor} + {b} = {a * factor + b} {small}.",
        ],
        a * factor + b,
        f"It is {a * factor + b} {small}.",
    )


@_template
def _triangle_angle(d: Draw) -> Problem:
    a, b = d.n(25, 85), d.n(25, 85)
    return _problem(
        f"Two angles of a triangle are {a} and {b} degrees. How large is the third angle?",
        [
            f"The two angles add up to {a} + {b} = {a + b} degrees.",
            f"The angles of a triangle add up to 180 degrees, so the third is 180 - {a + b} = {180 - a - b} degrees.",
        ],
        180 - a - b,
        f"The third angle is {180 - a - b} degrees.",
    )


@_template
def _pythagoras(d: Draw) -> Problem:
    p, q, r = d.choice([(3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25)])
    k = d.n(1, 6)
    a, b, c = p * k, q * k, r * k
    return _problem(
        d.pick(
            f"A ladder stands {a} feet from a wall and reaches {b} feet up the wall. How long is the ladder?",
            f"A right triangle has legs of {a} and {b}. How long is its hypotenuse?",
            f"Someone walks {a} km east and then {b} km north. How far, in a straight line, is that from the start in km?",
        ),
        [
            f"By the Pythagorean theorem the square of the length is {a}^2 + {b}^2 = {a * a} + {b * b} = {c * c}.",
            f"The square root of {c * c} is {c}.",
        ],
        c,
        f"The length is {c}.",
    )


@_template
def _sequence_term(d: Draw) -> Problem:
    a, step, n = d.n(1, 20), d.n(2, 12), d.n(8, 40)
    shown = ", ".join(str(a + i * step) for i in range(4))
    return _problem(
        f"What is the {n}th term of the sequence {shown}, ...?".replace("21th", "21st")
        .replace("31th", "31st")
        .replace("22th", "22nd")
        .replace("32th", "32nd")
        .replace("23th", "23rd")
        .replace("33th", "33rd"),
        [
            f"Each term is {step} more than the one before.",
            f"From the first term it takes {n} - 1 = {n - 1} steps, which add {n - 1} * {step} = {(n - 1) * step}.",
            f"The term is {a} + {(n - 1) * step} = {a + (n - 1) * step}.",
        ],
        a + (n - 1) * step,
        f"The term is {a + (n - 1) * step}.",
    )


@_template
def _two_unknowns(d: Draw) -> Problem:
    x, y, a, b = d.n(2, 12), d.n(2, 12), d.n(2, 5), d.n(2, 5)
    t, u = d.things()
    p, q = a * x + y, b * x + y
    if a == b:
        b += 1
        q = b * x + y
    lo, hi = sorted(((a, p), (b, q)))
    return _problem(
        f"{lo[0]} bags of {t} and one bag of {u} cost ${lo[1]}. {hi[0]} bags of {t} and one bag of {u} cost ${hi[1]}. What does a bag of {u} cost?",
        [
            f"The second purchase has {hi[0]} - {lo[0]} = {hi[0] - lo[0]} more {'bag' if hi[0] - lo[0] == 1 else 'bags'} of {t} and costs {hi[1]} - {lo[1]} = ${hi[1] - lo[1]} more.",
            f"So a bag of {t} costs {hi[1] - lo[1]} / {hi[0] - lo[0]} = ${x}.",
            f"{lo[0]} of them cost {lo[0]} * {x} = ${lo[0] * x}.",
            f"A bag of {u} costs {lo[1]} - {lo[0] * x} = ${y}.",
        ],
        y,
        f"A bag of {u} costs ${y}.",
    )


@_template
def _paint(d: Draw) -> Problem:
    rooms, walls, area, per, price = d.n(2, 6), 4, d.n(10, 20, 2), d.n(20, 40, 10), d.n(8, 25)
    total = rooms * walls * area
    cans = -(-total // per)
    return _problem(
        f"{rooms} rooms have {walls} walls of {area} square meters each. A can of paint covers {per} square meters and costs ${price}. What does the paint cost?",
        [
            f"There are {rooms} * {walls} = {rooms * walls} walls with {rooms * walls} * {area} = {total} square meters.",
            f"{total} / {per} = {total / per:g}, so {cans} cans are needed.",
            f"They cost {cans} * {price} = ${cans * price}.",
        ],
        cans * price,
        f"The paint costs ${cans * price}.",
    )


@_template
def _inventory_week(d: Draw) -> Problem:
    t, start, sold, days, crates, per = d.thing(), d.n(150, 400, 10), d.n(8, 25), d.n(3, 6), d.n(2, 6), d.n(10, 30, 5)
    end = start - sold * days + crates * per
    return _problem(
        f"A store has {start} {t}. It sells {sold} a day for {days} days and then receives {crates} crates with {per} {t} each. How many {t} does it have now?",
        [
            f"It sells {sold} * {days} = {sold * days} {t}, which leaves {start} - {sold * days} = {start - sold * days}.",
            f"The crates bring {crates} * {per} = {crates * per}.",
            f"Now there are {start - sold * days} + {crates * per} = {end} {t}.",
        ],
        end,
        f"The store has {end} {t}.",
    )


@_template
def _budget(d: Draw) -> Problem:
    name, sub, _ = d.who()
    income = d.n(1200, 4800, 400)
    rent, food = income // 4, income // 10
    bills, rest = d.n(50, 200, 10), 0
    rest = income - rent - food - bills
    return _problem(
        f"{name} earns ${income} a month. {sub.capitalize()} spends 1/4 of it on rent, 10% on food and ${bills} on bills. How much is left?",
        [
            f"Rent is {income} / 4 = ${rent}.",
            f"Food is {income} * 10 / 100 = ${food}.",
            f"All expenses are {rent} + {food} + {bills} = ${rent + food + bills}.",
            f"What is left is {income} - {rent + food + bills} = ${rest}.",
        ],
        rest,
        f"${rest} is left.",
    )


@_template
def _candle(d: Draw) -> Problem:
    rate, hours, left = d.n(1, 4), d.n(2, 6), d.n(2, 15)
    start = rate * hours + left
    while left % rate:
        left += 1
        start += 1
    return _problem(
        f"A candle is {start} centimeters tall and gets {rate} {'centimeter' if rate == 1 else 'centimeters'} shorter every hour. It has burned for {hours} hours. How many more hours can it burn?",
        [
            f"It has lost {rate} * {hours} = {rate * hours} centimeters.",
            f"It is now {start} - {rate * hours} = {left} centimeters tall.",
            f"It can burn for {left} / {rate} = {left // rate} more hours.",
        ],
        left // rate,
        f"It can burn for {left // rate} more hours.",
    )


@_template
def _fuel(d: Draw) -> Problem:
    name, _sub, _ = d.who()
    per, gallons, price = d.n(20, 40, 5), d.n(4, 14), d.n(3, 5)
    trips = d.n(2, 5)
    return _problem(
        f"A car goes {per} miles on a gallon of fuel, and a gallon costs ${price}. {name} makes {trips} trips of {per * gallons} miles. What does the fuel cost?",
        [
            f"One trip takes {per * gallons} / {per} = {gallons} gallons.",
            f"{trips} trips take {trips} * {gallons} = {trips * gallons} gallons.",
            f"They cost {trips * gallons} * {price} = ${trips * gallons * price}.",
        ],
        trips * gallons * price,
        f"The fuel costs ${trips * gallons * price}.",
    )


@_template
def _classroom_groups(d: Draw) -> Problem:
    groups, size, absent, sheets = d.n(4, 9), d.n(3, 6), d.n(1, 5), d.n(2, 6)
    total = groups * size + absent
    return _problem(
        f"A class has {total} students, but {absent} {'is' if absent == 1 else 'are'} absent today. The others form groups of {size}, and every group gets {sheets} sheets of paper. How many sheets are handed out?",
        [
            f"Today there are {total} - {absent} = {groups * size} students.",
            f"They form {groups * size} / {size} = {groups} groups.",
            f"The groups get {groups} * {sheets} = {groups * sheets} sheets.",
        ],
        groups * sheets,
        f"{groups * sheets} sheets are handed out.",
    )


def generate(seed: int) -> Iterator[tuple[int, str, str]]:
    """Endless problems as (index of the template, user text, assistant text), each text once.

    Half of the answers end in a line "#### N", the others in a sentence.
    """
    draw = Draw(seed)
    seen: set[str] = set()
    while True:
        order = list(range(len(TEMPLATES)))
        draw.shuffle(order)
        for index in order:
            problem = TEMPLATES[index](draw)
            if problem.question in seen:
                continue
            seen.add(problem.question)
            question = problem.question
            if draw.random() < 0.12:
                question = draw.choice(_OPENINGS) + question
            elif draw.random() < 0.12:
                question += draw.choice(_ENDINGS)
            if draw.random() < 0.5:
                answer = "\n".join(problem.steps) + f"\n#### {problem.answer}"
            else:
                answer = draw.choice((" ", "\n", "\n\n")).join((*problem.steps, problem.closing))
            yield index, question, answer


def main() -> None:
    """Print some problems, to read them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    problems = generate(options.seed)
    for _ in range(options.count):
        index, question, answer = next(problems)
        print(f"[{index}] {question}\n{answer}\n")


if __name__ == "__main__":
    main()
