"""What notebooks note and print."""

from types import SimpleNamespace

from minidist.classroom.notebook.watch import mix, print_losses, watch


class Engine:
    direction = "forward"

    def gather(self, flat, *more):
        return flat, *more


def test_a_watched_engine_notes_after_each_call():
    watched = watch(Engine, ("gather",), lambda engine, flat: (engine.direction, flat))
    engine = watched()
    assert engine.gather("head", 1) == ("head", 1)
    assert engine.history == [("forward", "head")]
    assert watched.__name__ == "WatchedEngine"


def test_a_mix_has_the_methods_that_are_asked_for(monkeypatch):
    def gather(self, flat):
        return "mine"

    exercise = SimpleNamespace(Engine=type("Engine", (), {"gather": gather, "other": None}))
    monkeypatch.setitem(__import__("sys").modules, "exercise", exercise)
    assert mix(Engine, [])().gather("head") == ("head",)
    assert mix(Engine, ["gather"])().gather("head") == "mine"
    assert not hasattr(mix(Engine, ["gather"]), "other")


def test_losses_are_printed_in_columns(capsys):
    print_losses({"serial": [1.0, 0.5, 0.25], "on ranks": [1.0, 0.5, 0.25]}, every=2, digits=2)
    lines = ["loss at step     0    2", "serial        1.00 0.25", "on ranks      1.00 0.25"]
    assert capsys.readouterr().out.splitlines() == lines
