"""Growth over a soak: what is one, and what is noise."""

import random

import pytest

from benchmarks.soak import Holding, grown, growth

_BASE = {"Blocks": 900_000, "VmRSS": 100_000, "Descriptors": 300, "Threads": 6}


def soaked(name: str, values: list[int]) -> list[Holding]:
    """One value of a quantity every 5 s, and all others at rest."""
    return [Holding(5.0 * n, _BASE | {name: value}) for n, value in enumerate(values)]


def noise(n: int) -> list[int]:
    """Numbers around 0, the same each time."""
    generator = random.Random(7)
    return [generator.randrange(-2000, 2000) for _ in range(n)]


def test_growth_is_the_median_slope_over_the_whole_time() -> None:
    samples = [(float(n), 2.0 * n) for n in range(10)]
    samples[4] = (4.0, 1000.0)
    assert growth(samples) == 18.0


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param(
            "VmRSS", [100_000 + 600 * n + jump for n, jump in enumerate(noise(60))], id="memory"
        ),
        pytest.param(
            "Blocks", [900_000 + 1500 * n + jump for n, jump in enumerate(noise(60))], id="blocks"
        ),
        pytest.param("Descriptors", [300 + n for n in range(60)], id="descriptors"),
        pytest.param("Threads", [6 + n // 4 for n in range(60)], id="threads"),
    ],
)
def test_what_rises_to_the_end_is_named(name: str, values: list[int]) -> None:
    [text] = grown(soaked(name, values))
    assert text.startswith(f"{name} grew by ")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param("VmRSS", [100_000 + jump for jump in noise(60)], id="noise"),
        pytest.param(
            "VmRSS", [30_000 + 7000 * n for n in range(11)] + [100_000] * 49, id="warm-up"
        ),
        pytest.param("VmRSS", [100_000, 900_000] + [100_000] * 58, id="one peak"),
        pytest.param("Threads", [6, 7] * 30, id="a thread now and then"),
        pytest.param(
            "Descriptors", [30 if jump < 0 else 390 for jump in noise(60)], id="a pool that fills"
        ),
        pytest.param("Descriptors", [30] * 40 + [30, 390] * 10, id="and fills at the end"),
        pytest.param("Descriptors", [300 - n for n in range(60)], id="falling"),
    ],
)
def test_what_stays_is_not_named(name: str, values: list[int]) -> None:
    assert grown(soaked(name, values)) == []


def test_short_soak_is_no_growth() -> None:
    assert grown(soaked("VmRSS", [100_000])) == []
