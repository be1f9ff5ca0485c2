"""README and `docs/` say what is there: generated pages are current, links and citations lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.reference import FOLDER, PAGES
from rivet_assets.cli.main import COMMANDS
from rivet_assets.config.json_schema import config_json_schema
from rivet_assets.config.load import config_from_attributes, load_text

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
DESIGN = DOCS / "design"
PAGES_OF_PEOPLE = [ROOT / "README.md", ROOT / ".github" / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"(?<!\!)\[[^\]\n]*\]\(([^)\s]+)\)|!\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# A citation: the page of the design, then perhaps its section: `contract.md`, 8.3; `cdc.md`, sections 4.1, 7 and 10.
CITATION = re.compile(r"`?\b([a-z]+)\.md`?(?:,? (?:section[s]? )?(\d+(?:\.\d+)?)\b)?")
NO_PAGES = {"CHANGELOG", "README", "CONTRIBUTING", "summary"}
CODE = ("rivet_assets", "rivet_resources", "tests")


def read(path: Path) -> str:
    """Read a page, without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """Spell a heading as GitHub and MkDocs do in an address."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", text.strip().lower()))


def keys_of(schema: object) -> set[str]:
    """Collect the keys of all blocks of a JSON schema."""
    if isinstance(schema, list):
        return {key for item in schema for key in keys_of(item)}
    if not isinstance(schema, dict):
        return set()
    properties = schema.get("properties")
    own = set(properties) if isinstance(properties, dict) else set()
    return own | {key for value in schema.values() for key in keys_of(value)}


def name_of(path: Path) -> str:
    """Name a page below the checkout."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    """What models, commands and error classes say stands in `docs/reference/`; else: `python -m docs.reference`."""
    assert PAGES[name]() == (FOLDER / name).read_text(encoding="utf-8")


def test_every_yaml_key_is_in_the_reference() -> None:
    """Each key of the schema that editors get has a row."""
    page = (FOLDER / "yaml.md").read_text(encoding="utf-8")

    assert [] == sorted(key for key in keys_of(config_json_schema()) if f"`{key}`" not in page)


def test_every_command_is_in_the_reference() -> None:
    """A command that the reference does not show does not exist for its reader."""
    page = (FOLDER / "cli.md").read_text(encoding="utf-8")

    assert [] == [name for name in COMMANDS if f"# rivet {name}\n" not in page]


def test_readme_is_one_screen_of_selling_and_no_manual() -> None:
    """The README has at most 200 lines; everything else has a page of its own."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file that is there, and each anchor a heading of it."""
    broken = []
    for match in LINK.finditer(read(page)):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (anchor and anchor not in map(slug, HEADING.findall(read(file)))):
            broken.append(target)

    assert [] == broken


def test_pages_of_the_site_link_within_it() -> None:
    """A link out of `docs/` would be dead on the site."""
    outside = [
        f"{name_of(page)}: {target}"
        for page in sorted(DOCS.rglob("*.md"))
        for target in (match[1] or match[2] for match in LINK.finditer(read(page)))
        if not re.match(r"[a-z]+:|#", target)
        and not (page.parent / target.partition("#")[0]).resolve().is_relative_to(DOCS)
    ]

    assert [] == outside


def test_citations_of_the_code_lead_to_a_section() -> None:
    """Where the code names a design page and a section, both are in `docs/design/`."""
    files = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    numbers = {
        page.stem: set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)[. ]", page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in DESIGN.glob("*.md")
    }
    dead = []
    for path in (ROOT / "pyproject.toml", *files):
        if path == Path(__file__):
            continue
        for match in CITATION.finditer(re.sub(r"\n(?:#|\s)*", " ", path.read_text(encoding="utf-8"))):
            page, section = match[1], match[2]
            before = match.string[match.start() - 1 : match.start()]
            if page in NO_PAGES or before in "._/" or (match.string[match.end() :][:1].isalnum()):
                continue
            if page not in numbers or (section and section not in numbers[page]):
                dead.append(f"{name_of(path)}: {match[0]}")

    assert [] == dead


def test_codes_and_variables_of_the_pages_exist() -> None:
    """A `RIVET_…` word that a page names is an error code, or a variable that the code reads."""
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    known = set(re.findall(r"RIVET_[A-Z0-9_]+", "".join(path.read_text(encoding="utf-8") for path in files)))
    known |= set(re.findall(r"RIVET_[A-Z0-9_]+", (FOLDER / "errors.md").read_text(encoding="utf-8")))

    unknown = {
        f"{name_of(page)}: {word}"
        for page in PAGES_OF_PEOPLE
        for word in re.findall(r"RIVET_[A-Z0-9_]*[A-Z0-9]", page.read_text(encoding="utf-8"))
        if word not in known and not any(each.startswith(f"{word}_") for each in known)
    }

    assert set() == unknown


@pytest.mark.parametrize("page", PAGES_OF_PEOPLE, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A path of this repository that stands there leads to a file or folder."""
    named = re.findall(r"`((?:rivet_assets|rivet_resources|tests|docs)/[\w/.-]+)`", page.read_text(encoding="utf-8"))

    assert [] == [path for path in named if not (ROOT / path).exists()]


def examples() -> list[tuple[str, str]]:
    """List the YAML of README and guides that is a whole file: it has exports."""
    return [
        (f"{name_of(page)}:{number}", text)
        for page in PAGES_OF_PEOPLE
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
        if re.search(r"^ *exports:", text, re.MULTILINE) and DESIGN not in page.parents
    ]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in examples()])
def test_examples_are_accepted_as_they_are(text: str) -> None:
    """What stands there as rivet.yaml, and as a component, loads."""
    if "type: rivet_assets.Exports" in text:
        config = config_from_attributes(yaml.safe_load(text)["attributes"], file=Path("defs.yaml"))
    else:
        config = load_text(text, file=Path("rivet.yaml"))

    assert config.exports
