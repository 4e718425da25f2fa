"""Lines for users on stderr: a logger of their own, and what is said while a compilation takes long."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from helion._support import logs


def test_lines_go_to_stderr_and_can_be_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    logs.say("helion: 50% of it")
    assert capsys.readouterr().err == "helion: 50% of it\n"
    notices = logging.getLogger("helion.notices")
    notices.setLevel(logging.ERROR)
    try:
        logs.say("helion: more")
        assert capsys.readouterr().err == ""
    finally:
        notices.setLevel(logging.NOTSET)


def test_what_takes_long_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_COMPILE_NOTICE_SECONDS", "1000")
    with logs.saying_when_slow("for {} s".format):
        monkeypatch.setenv("HELION_COMPILE_NOTICE_SECONDS", "1")
        with logs.saying_when_slow("inside for {} s".format):
            while not (said := capsys.readouterr().err):
                time.sleep(0.01)
        assert said == "inside for 1 s\n"
        assert len([thread for thread in threading.enumerate() if thread.name == "helion-slow"]) == 1
    monkeypatch.setenv("HELION_COMPILE_NOTICE_SECONDS", "0")
    with logs.saying_when_slow("for {} s".format):
        time.sleep(0.01)
    assert capsys.readouterr().err == ""
