"""T-SQL expressions for DuckDB: the SQL Server emulator's typing and rewriting of a parsed query.

Belongs here: which type each expression has, and what DuckDB is asked instead. Not here: statements (sql.py), the
functions called `tds_…` (database.py). A node's type is kept in its `meta["type"]`; none where nobody knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp, parse_one

from tests.emulators.tds.types import DEFAULT_COLLATION, TEMPORAL, TEXTS, WIDE, Type, named

Scope = Mapping[str, Mapping[str, Type | None]]  # source → column → type, both in lower case


class Fault(Exception):
    """An error of the server: its number and text."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number, self.text = number, text


def type_of(node: exp.Expression | None) -> Type | None:
    """Return what is known of a node's type."""
    return node.meta.get("type") if node is not None else None


def typed(node: exp.Expression, kind: Type | None) -> exp.Expression:
    """Note a node's type."""
    node.meta["type"] = kind
    return node


def call(name: str, *arguments: exp.Expression | str | int, kind: Type | None) -> exp.Expression:
    """Call a function of DuckDB's, or one of ours."""
    given = [a if isinstance(a, exp.Expression) else _literal(a) for a in arguments]
    return typed(exp.Anonymous(this=name, expressions=given), kind)


def _literal(value: str | int) -> exp.Expression:
    return exp.Literal.number(value) if isinstance(value, int) else exp.Literal.string(value)


def cast(node: exp.Expression, storage: str, kind: Type | None) -> exp.Expression:
    """Cast in DuckDB's words."""
    return typed(exp.Cast(this=node, to=exp.DataType.build(storage, dialect="duckdb")), kind)


NAMES: Mapping[str, str] = {
    "UTINYINT": "tinyint", "TIMESTAMPTZ": "datetimeoffset", "UUID": "uniqueidentifier", "VARIANT": "sql_variant",
    "ROWVERSION": "timestamp", "DECIMAL": "decimal", "DATETIME": "datetime", "IMAGE": "image", "TEXT": "text",
}  # fmt: skip


def declared(data_type: exp.DataType, collation: str = "") -> Type:
    """Return the type that DDL or a CONVERT names."""
    word = data_type.this.name if hasattr(data_type.this, "name") else str(data_type.this)
    arguments = [str(e.this.name if isinstance(e, exp.DataTypeParam) else e) for e in data_type.expressions]
    if word == "USERDEFINED":
        return named(str(data_type.args["kind"]).lower(), collation=collation)
    if word == "FLOAT":
        return named("real" if arguments and int(arguments[0]) <= 24 else "float")
    return named(NAMES.get(word, word.lower()), *arguments, collation=collation)


# --- conversions ---------------------------------------------------------------------------------


def convert(node: exp.Expression, to: Type, style: int = 0) -> exp.Expression:
    """Convert a typed node as the server would; `to` decides the stored form."""
    source = type_of(node)
    if isinstance(node, exp.Null):
        return cast(node, to.storage.split(" ")[0], to)
    if to.name in TEMPORAL:
        return call("tds_time", cast(node, "VARCHAR", None), to.name, to.scale, source.name if source else "", kind=to)
    if to.name == "uniqueidentifier":
        return call("tds_uuid", cast(node, "VARCHAR", None), kind=to)
    if to.name == "sql_variant":
        if source is not None and source.name == "sql_variant":
            return node
        base = source.name if source else "int"
        return call("tds_variant", base, _as_text(node, WIDE, style), kind=to)
    if to.name in TEXTS:
        return _as_text(node, to, style)
    if to.name in ("binary", "varbinary", "image", "timestamp"):
        size = 8 if to.name == "timestamp" else to.length
        if source is not None and source.name in TEXTS:
            node = call("encode", node, kind=None)
        is_fixed = to.name in ("binary", "timestamp")
        return call("tds_binary", node, size, int(is_fixed), kind=to) if size > 0 else typed(node, to)
    return cast(node, to.storage, to)


def _as_text(node: exp.Expression, to: Type, style: int) -> exp.Expression:
    source = type_of(node)
    if source is None or source.name in TEXTS - {"sql_variant"}:
        text = node if source is not None else cast(node, "VARCHAR", to)
        if source is not None and source.name == "char" and source.length > 0:
            # Stored without the blanks that fill it up to its length, which whoever converts it sees.
            text = call("rpad", text, source.length, " ", kind=source)
    elif source.name in TEMPORAL:
        text = call("tds_show", node, source.name, source.scale, style, kind=to)
    elif source.name == "uniqueidentifier":
        text = call("tds_uuid_text", node, kind=to)
    elif source.name in ("float", "real"):
        text = call("tds_float", cast(node, "DOUBLE", None), style, kind=to)
    elif source.name in ("binary", "varbinary", "timestamp", "image"):
        text = typed(exp.DPipe(this=exp.Literal.string("0x"), expression=call("hex", node, kind=None)), to)
    elif source.name == "sql_variant":
        text = call("regexp_replace", node, "^[^:]*:", "", kind=to)
    elif source.name == "bit":
        text = cast(cast(node, "INTEGER", None), "VARCHAR", to)
    else:
        text = cast(node, "VARCHAR", to)
    size = to.length // (2 if to.name[0] == "n" else 1)
    if to.name in ("char", "varchar", "nchar", "nvarchar") and to.length > 0 and source is not None:
        text = call("left", text, size, kind=to)
    collation = source.collation if source is not None and source.name in TEXTS else DEFAULT_COLLATION
    return typed(text, Type(to.name, to.length, collation=to.collation or collation))


def harmonised(left: exp.Expression, right: exp.Expression) -> tuple[exp.Expression, exp.Expression]:
    """Bring two sides of a comparison to one stored form."""
    a, b = type_of(left), type_of(right)
    special = {"uniqueidentifier", *TEMPORAL}
    names = {kind.name for kind in (a, b) if kind is not None and kind.name in special}
    if not names and "char" in {kind.name for kind in (a, b) if kind is not None}:
        # Blanks at the end count in no comparison of texts; a char is stored without those that fill it up.
        return call("rtrim", left, " ", kind=a), call("rtrim", right, " ", kind=b)
    if not names:
        return left, right
    if len(names) > 1:
        name = "datetimeoffset" if "datetimeoffset" in names else "datetime2"
        target = named(name)
    else:
        target = next(k for k in (a, b) if k is not None and k.name in names)
        if target.name in ("datetime2", "datetimeoffset", "time"):
            target = named(target.name)  # all are stored with seven digits
    one, other = (n if (k := type_of(n)) and k.name == target.name else convert(n, target) for n in (left, right))
    if target.name == "datetimeoffset":  # instants compare, offsets do not
        return call("left", one, 27, kind=target), call("left", other, 27, kind=target)
    return one, other


# --- expressions ---------------------------------------------------------------------------------

COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
NOW = named("datetime2")
INT, BIGINT = named("int"), named("bigint")


@dataclass
class Rewriter:
    """Rewrites one query. `tables` finds a declared table's columns, `describe` describes a query's text."""

    tables: Callable[[exp.Table], tuple[exp.Expression, Mapping[str, Type | None]]]
    facts: Mapping[str, Any]  # spid, login, database, rowversion
    describe: Callable[[str], exp.Expression]
    changes: Callable[[exp.Table], tuple[exp.Expression, Mapping[str, Type | None]]]  # a change-capture function's rows
    common: dict[str, Mapping[str, Type | None]] = field(default_factory=dict)

    # --- queries ---------------------------------------------------------------------------------

    def query(self, node: exp.Expression) -> list[tuple[str, Type | None]]:
        """Rewrite a query in place; gives its columns."""
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else []:
            inner = cte.this
            if isinstance(inner, exp.SetOperation):  # of a recursive one, the anchor knows the columns
                anchor = self.query(inner.this)
                self.common[cte.alias.lower()] = {n.lower(): t for n, t in anchor}
                self.query(inner.expression)
                columns = anchor
            else:
                columns = self.query(inner)
            self.common[cte.alias.lower()] = {n.lower(): t for n, t in columns}
            with_.set("recursive", True)
        if isinstance(node, exp.SetOperation):
            columns = self.query(node.this)
            self.query(node.expression)
            return columns
        if isinstance(node, exp.Subquery):
            return self.query(node.this)
        return self._select(node)

    def _select(self, node: exp.Expression) -> list[tuple[str, Type | None]]:
        scope: dict[str, Mapping[str, Type | None]] = {}
        from_ = node.args.get("from_")
        sources = ([from_] if from_ else []) + list(node.args.get("joins") or [])
        for holder in sources:
            self._source(holder, scope)
        for join in node.args.get("joins") or []:
            if join.args.get("on"):
                join.set("on", self.expression(join.args["on"], scope))
        self._expand(node, scope)
        for key in ("where", "group", "having", "order"):
            if node.args.get(key):
                node.set(key, self.expression(node.args[key], scope))
        node.set("expressions", [self.expression(e, scope) for e in node.expressions])
        return [(e.alias_or_name, type_of(e)) for e in node.expressions]

    def _source(self, holder: exp.Expression, scope: dict[str, Mapping[str, Type | None]]) -> None:
        source = holder.this
        if isinstance(source, exp.TableSample):
            source = source.this
            holder.set("this", source)
        source.set("sample", None)
        source.set("hints", None)
        alias = source.alias_or_name.lower()
        if isinstance(source, exp.Subquery):
            scope[alias] = {name.lower(): kind for name, kind in self.query(source.this)}
            return
        if isinstance(source, exp.Table) and not source.db and source.name.lower() in self.common:
            scope[alias] = self.common[source.name.lower()]
            return
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Func) and source.db.lower() == "cdc":
            new, columns = self.changes(source)
            holder.set("this", new)
            scope[alias] = columns
            return
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Func):
            holder.set("this", self._function(source))
            scope[alias] = {}
            return
        new, columns = self.tables(source)
        holder.set("this", new)
        scope[alias] = columns

    def _function(self, source: exp.Table) -> exp.Expression:
        function = source.this
        name = function.name.lower() if isinstance(function, exp.Anonymous) else type(function).__name__.lower()
        if name == "dm_exec_describe_first_result_set":
            return self.describe(function.expressions[0].name).as_(source.alias or "r")  # type: ignore[attr-defined, no-any-return]
        inner = f"SELECT generate_series AS value FROM {function.sql('duckdb')}"
        return exp.Subquery(
            this=parse_one(inner, read="duckdb"), alias=source.args.get("alias") or exp.to_identifier("g")
        )

    def _expand(self, node: exp.Expression, scope: Scope) -> None:
        """Spell a star out, where the sources' columns are known."""
        if not any(isinstance(e, exp.Star) for e in node.expressions) or not all(scope.values()):
            return
        names = [exp.column(name, quoted=True) for columns in scope.values() for name in columns]
        rest = [e for e in node.expressions if not isinstance(e, exp.Star)]
        node.set("expressions", names + rest)

    # --- expressions -----------------------------------------------------------------------------

    def expression(self, node: exp.Expression, scope: Scope) -> exp.Expression:
        """Rewrite one expression; gives what stands in its place, typed where possible."""
        if isinstance(node, (exp.Query, exp.Subquery)):
            columns = self.query(node)
            return typed(node, columns[0][1] if columns else None)
        if isinstance(node, exp.Exists):
            self.query(node.this)
            return node
        if isinstance(node, exp.Column):
            return self._column(node, scope)
        if isinstance(node, exp.Literal):
            return typed(node, named("varchar", "8000") if node.is_string else _number(node.name))
        if isinstance(node, exp.National):
            return typed(exp.Literal.string(node.name), named("nvarchar", "4000"))
        if isinstance(node, exp.HexString):
            size = max(len(node.name) // 2, 1)
            return call(
                "unhex", node.name if len(node.name) % 2 == 0 else "0" + node.name, kind=named("varbinary", str(size))
            )
        if isinstance(node, (exp.DataType, exp.Identifier, exp.Var)):
            return node
        if isinstance(node, exp.Dot):
            return self._method(node, scope)
        self._children(node, scope)
        return self._typed(node)

    def _children(self, node: exp.Expression, scope: Scope) -> None:
        for key, value in list(node.args.items()):
            if isinstance(value, exp.Expression):
                node.set(key, self.expression(value, scope))
            elif isinstance(value, list):
                node.set(key, [self.expression(v, scope) if isinstance(v, exp.Expression) else v for v in value])

    def _column(self, node: exp.Column, scope: Scope) -> exp.Expression:
        name, table = node.name.lower(), node.table.lower()
        if name.startswith("@@"):
            return call("coalesce", int(self.facts["spid"]), kind=INT)
        for source, columns in scope.items():
            if table in ("", source) and name in columns:
                return typed(node, columns[name])
        return typed(node, None)

    def _method(self, node: exp.Dot, scope: Scope) -> exp.Expression:
        """Rewrite column.Method(): CLR types are stored as their text."""
        if isinstance(node.expression, exp.Anonymous) and node.expression.name.lower() in LOG_ENDS:
            given = [self.expression(e, scope).sql("duckdb") for e in node.expression.expressions]
            found = parse_one(LOG_ENDS[node.expression.name.lower()].format(*given), read="duckdb")
            return typed(found, named("binary", "10"))
        names = [part.name for part in node.flatten() if isinstance(part, exp.Identifier)]
        column = self.expression(exp.column(names[-1], names[-2] if len(names) > 1 else None, quoted=True), scope)
        if node.expression.name.lower() == "stasbinary":
            return call("tds_wkb", column, kind=named("varbinary", "max"))
        return typed(column, WIDE)

    def _typed(self, node: exp.Expression) -> exp.Expression:
        for kinds, rule in RULES:
            if isinstance(node, kinds):
                return rule(self, node)
        return node

    # --- rules, one for each kind of node --------------------------------------------------------

    def cast(self, node: exp.Expression) -> exp.Expression:
        target = node.this if isinstance(node, exp.Convert) else node.args["to"]
        value = node.expression if isinstance(node, exp.Convert) else node.this
        style = node.args.get("style")
        return convert(value, declared(target), int(style.name) if style is not None else 0)

    def comparison(self, node: exp.Expression) -> exp.Expression:
        left, right = harmonised(node.this, node.expression)
        node.set("this", left)
        node.set("expression", right)
        return node

    def between(self, node: exp.Expression) -> exp.Expression:
        for key in ("low", "high"):
            subject, value = harmonised(typed(node.this.copy(), type_of(node.this)), node.args[key])
            node.set(key, value)
        node.set("this", subject)
        return node

    def within(self, node: exp.Expression) -> exp.Expression:
        pairs = [harmonised(typed(node.this.copy(), type_of(node.this)), e) for e in node.expressions]
        if pairs:
            node.set("expressions", [value for _, value in pairs])
            node.set("this", pairs[0][0])
        return node

    def same(self, node: exp.Expression) -> exp.Expression:
        return typed(node, type_of(node.this))

    def coalesce(self, node: exp.Expression) -> exp.Expression:
        known = next((k for k in (type_of(node.this), *map(type_of, node.expressions)) if k is not None), None)
        if known is not None and known.name in TEMPORAL:
            node.set("expressions", [convert(e, known) for e in node.expressions])
        return typed(node, known)

    def case(self, node: exp.Expression) -> exp.Expression:
        return typed(node, next((k for i in node.args["ifs"] if (k := type_of(i.args["true"])) is not None), None))

    def count(self, node: exp.Expression) -> exp.Expression:
        return typed(node, BIGINT if node.args.get("big_int") else INT)

    def window(self, node: exp.Expression) -> exp.Expression:
        return typed(node, BIGINT if isinstance(node.this, (exp.RowNumber, exp.Ntile)) else type_of(node.this))

    def collate(self, node: exp.Expression) -> exp.Expression:
        kind = type_of(node.this) or WIDE
        return typed(node.this, Type(kind.name, kind.length, collation=node.expression.name))

    def part(self, node: exp.Expression) -> exp.Expression:
        kind = type_of(node.expression)
        return call("tds_part", node.this.name, node.expression, kind.name if kind else "datetime2", kind=INT)

    def date_add(self, node: exp.Expression) -> exp.Expression:
        unit = node.args["unit"].name
        return call("tds_add", unit, cast(node.expression, "BIGINT", None), convert(node.this, NOW), kind=NOW)

    def date_difference(self, node: exp.Expression) -> exp.Expression:
        return call("tds_between", node.args["unit"].name, cast(node.expression, "VARCHAR", None),
                    cast(node.this, "VARCHAR", None), kind=INT)  # fmt: skip

    def now(self, node: exp.Expression) -> exp.Expression:
        return call("tds_now", kind=NOW)

    def zone(self, node: exp.Expression) -> exp.Expression:
        kind = type_of(node.this)
        if kind is not None and kind.name == "datetimeoffset":
            return call("tds_utc", node.this, kind=named("datetimeoffset"))
        return call("tds_zone", convert(node.this, NOW), node.args["zone"], kind=named("datetimeoffset"))

    def add(self, node: exp.Expression) -> exp.Expression:
        kinds = [type_of(node.this), type_of(node.expression)]
        if any(kind is not None and kind.name in TEXTS for kind in kinds):
            sides = [_as_text(side, WIDE, 0) if (k := type_of(side)) and k.name not in TEXTS else side
                     for side in (node.this, node.expression)]  # fmt: skip
            return typed(exp.DPipe(this=sides[0], expression=sides[1]), WIDE)
        return typed(node, kinds[0] or kinds[1])

    def divide(self, node: exp.Expression) -> exp.Expression:
        kinds = [type_of(node.this), type_of(node.expression)]
        if all(kind is not None and kind.name in ("tinyint", "smallint", "int", "bigint") for kind in kinds):
            return typed(exp.IntDiv(this=node.this, expression=node.expression), kinds[0])
        return node

    def text(self, node: exp.Expression) -> exp.Expression:
        return typed(node, WIDE)

    def unwrapped(self, node: exp.Expression) -> exp.Expression:
        return node.this  # type: ignore[no-any-return]

    def parameter(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node.parent, exp.Parameter):  # @@NAME is parsed as one in another
            return node
        name = node.sql().upper()
        if name in self.facts["variables"]:
            return call("coalesce", int(self.facts["variables"][name]), kind=INT)
        value = {
            "@@SPID": self.facts["spid"],
            "@@TRANCOUNT": self.facts["open"],
            "@@VERSION": "emulator",
            "@@MAX_CONNECTIONS": 32767,
        }.get(name, 0)
        return call("coalesce", value, kind=INT if isinstance(value, int) else WIDE)

    def user(self, node: exp.Expression) -> exp.Expression:
        return call("coalesce", str(self.facts["login"]), kind=WIDE)

    def schema(self, node: exp.Expression) -> exp.Expression:
        return call("coalesce", "dbo", kind=WIDE)

    def uuid(self, node: exp.Expression) -> exp.Expression:
        return call("tds_uuid", cast(exp.Anonymous(this="uuid"), "VARCHAR", None), kind=named("uniqueidentifier"))

    def anonymous(self, node: exp.Expression) -> exp.Expression:
        name, given = node.name.upper(), node.expressions
        if name in ("SYSUTCDATETIME", "SYSDATETIME", "GETUTCDATE", "GETDATE"):
            return call("tds_now", kind=NOW)
        if name in ("SYSDATETIMEOFFSET",):
            return call("concat", call("tds_now", kind=None), " +0", kind=named("datetimeoffset"))
        if name == "SWITCHOFFSET":
            return call("tds_utc", given[0], kind=named("datetimeoffset"))
        if name == "SQL_VARIANT_PROPERTY":
            return call("split_part", given[0], ":", 1, kind=WIDE)
        if name == "MIN_ACTIVE_ROWVERSION":
            return call("unhex", str(self.facts["rowversion"]), kind=named("binary", "8"))
        if name == "HAS_PERMS_BY_NAME":
            if isinstance(given[0], exp.Null):  # of the server
                return call("coalesce", int(self.facts["login"] == "sa"), kind=INT)
            return call("tds_may_read", str(self.facts["login"]), given[0], kind=INT)
        if name in ("DB_ID", "HAS_DBACCESS"):
            asked = given[0].name.lower() if given else str(self.facts["database"]).lower()
            if asked not in self.facts["databases"]:
                return cast(exp.Null(), "INTEGER", INT)
            may_enter = not asked.endswith("_closed") or self.facts["login"] == "sa"
            return call("coalesce", 5 if name == "DB_ID" else int(may_enter), kind=INT)
        if name in CONSTANT:
            value = CONSTANT[name](self.facts, given)
            return call("coalesce", value, kind=INT if isinstance(value, int) else WIDE)
        if name == "TYPE_NAME":
            return call("tds_type_name", given[0], kind=WIDE)
        if name == "QUOTENAME":
            return call("concat", "[", given[0], "]", kind=WIDE)
        if name == "REPLICATE":
            return call("repeat", *given, kind=WIDE)
        if name in ("MAX", "MIN"):
            return typed(node, type_of(given[0]))
        return node


# Ends of the change log, of all and of one capture instance.
LOG_ENDS: Mapping[str, str] = {
    "fn_cdc_get_max_lsn": "(SELECT max(start_lsn) FROM cdc.lsn_time_mapping)",
    "fn_cdc_get_min_lsn": "coalesce((SELECT max(start_lsn) FROM cdc.change_tables AS tds_t "
    "WHERE tds_t.capture_instance = {}), unhex('00000000000000000000'))",
}
CONSTANT: Mapping[str, Callable[[Mapping[str, Any], Sequence[exp.Expression]], str | int]] = {
    "DB_NAME": lambda facts, given: str(facts["database"]),
    "DATABASEPROPERTYEX": lambda facts, given: DATABASE_PROPERTIES.get(given[1].name) or str(facts["updateability"]),
    "SCHEMA_NAME": lambda facts, given: "dbo",
    "SUSER_SNAME": lambda facts, given: str(facts["login"]),
    "SERVERPROPERTY": lambda facts, given: SERVER_PROPERTIES[given[0].name],
}
DATABASE_PROPERTIES = {"Status": "ONLINE", "UserAccess": "MULTI_USER"}
SERVER_PROPERTIES = {"ProductVersion": "16.0.4105.2", "EngineEdition": "3", "Edition": "Emulator"}


def _number(text: str) -> Type:
    if text.isdigit():
        return INT if int(text) <= 2147483647 else BIGINT if int(text) <= 2**63 - 1 else named("decimal", "20", "0")
    if "e" in text.lower():
        return named("float")
    digits = text.replace(".", "")
    return named("decimal", str(max(len(digits), 1)), str(len(text.partition(".")[2])))


RULES: Sequence[tuple[Any, Callable[[Rewriter, exp.Expression], exp.Expression]]] = (
    ((exp.Convert, exp.Cast, exp.TryCast), Rewriter.cast),
    (COMPARISONS, Rewriter.comparison),
    (exp.Between, Rewriter.between),
    (exp.In, Rewriter.within),
    ((exp.Min, exp.Max, exp.Paren, exp.Alias, exp.Neg, exp.Sum, exp.Mod, exp.Sub, exp.Mul), Rewriter.same),
    (exp.Coalesce, Rewriter.coalesce),
    (exp.Case, Rewriter.case),
    (exp.Count, Rewriter.count),
    (exp.Window, Rewriter.window),
    (exp.Collate, Rewriter.collate),
    (exp.Extract, Rewriter.part),
    (exp.DateAdd, Rewriter.date_add),
    (exp.DateDiff, Rewriter.date_difference),
    ((exp.CurrentTimestamp, exp.CurrentTimestampLTZ), Rewriter.now),
    (exp.AtTimeZone, Rewriter.zone),
    (exp.Add, Rewriter.add),
    (exp.Div, Rewriter.divide),
    ((exp.Lower, exp.Upper, exp.Concat, exp.Substring, exp.Left, exp.Right, exp.Trim), Rewriter.text),
    (exp.TimeStrToTime, Rewriter.unwrapped),
    (exp.Parameter, Rewriter.parameter),
    (exp.CurrentUser, Rewriter.user),
    (exp.CurrentSchema, Rewriter.schema),
    (exp.Uuid, Rewriter.uuid),
    (exp.Anonymous, Rewriter.anonymous),
)
