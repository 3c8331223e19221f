"""Settings survive, and nonsense in the file is read as the default."""

from __future__ import annotations

from app.records import Sampling
from app.settings import Settings, SettingsStore


def test_round_trip(tmp_path):
    wanted = Settings(
        theme="dark",
        last_model="/models/a, b;c=ü.gguf",
        memory_fraction=0.5,
        window_state=bytes(range(256)),
        sampling=Sampling(0.25, 7, 0.5, 0.125, 2**63 - 1, 99),
    )
    SettingsStore(tmp_path / "settings.ini").write(wanted)
    assert SettingsStore(tmp_path / "settings.ini").read() == wanted
    SettingsStore(tmp_path / "settings.ini").write(Settings())
    assert SettingsStore(tmp_path / "settings.ini").read() == Settings()


def test_nonsense_is_the_default(tmp_path):
    path = tmp_path / "settings.ini"
    path.write_text(
        "[General]\ntheme=purple\n[engine]\nmemory_fraction=nan\n[window]\nstate=7\n"
        "[sampling]\ntemperature=-3\ntop_k=many\nseed=-1\n"
    )
    assert SettingsStore(path).read() == Settings()
    path.write_bytes(b"\0\xff garbage")
    assert SettingsStore(path).read() == Settings()
