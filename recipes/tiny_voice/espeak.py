"""espeak-ng through ctypes: one sentence to samples and phoneme times, many times faster than its program."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
from scipy.signal import resample_poly

SAMPLE_RATE = 24_000

_SYNCHRONOUS, _PHONEME_EVENTS = 2, 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_EVENT_END, _EVENT_PHONEME = 0, 7
_UTF8 = 1


class _Id(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _Id),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


@dataclass(frozen=True, slots=True)
class Utterance:
    """int16 samples at 24 kHz without the silence around them, and [(seconds, phoneme name)] in order."""

    samples: np.ndarray
    phonemes: list[tuple[float, str]]


class Espeak:
    """One espeak-ng in this process: the library keeps global state, so have one, and one thread."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds libespeak-ng.so and espeak-ng-data, as in the espeakng-loader package."""
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self.rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, str(folder).encode(), _PHONEME_EVENTS)
        if self.rate <= 0:
            raise RuntimeError(f"espeak-ng found no data in {folder}")
        self._chunks: list[np.ndarray] = []
        self._phonemes: list[tuple[float, str]] = []
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(self, text: str, voice: str, *, pitch: int = 50, pitch_range: int = 50, rate: int = 150) -> Utterance:
        """`voice` is a language with an optional variant ("en-us+f3"); `rate` is in words a minute."""
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}")
        for parameter, value in ((_RATE, rate), (_PITCH, pitch), (_RANGE, pitch_range)):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._chunks, self._phonemes = [], []
        encoded = text.encode()
        self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
        samples = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)
        return _trim(_resample(samples, self.rate), self._phonemes)

    def _receive(self, samples: ctypes._Pointer, count: int, events: ctypes._Pointer) -> int:
        if count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while events[i].type != _EVENT_END:
            if events[i].type == _EVENT_PHONEME:
                name = events[i].id.string.decode(errors="replace")
                self._phonemes.append((events[i].audio_position / 1000, name))
            i += 1
        return 0


def _resample(samples: np.ndarray, rate: int) -> np.ndarray:
    common = gcd(rate, SAMPLE_RATE)
    wide = resample_poly(samples.astype(np.float32), SAMPLE_RATE // common, rate // common)
    return np.clip(np.rint(wide), -32768, 32767).astype(np.int16)


def _trim(samples: np.ndarray, phonemes: list[tuple[float, str]]) -> Utterance:
    """Leave 40 ms before the first loud sample and 120 ms after the last: where a clip ends can then be learnt."""
    loud = np.flatnonzero(np.abs(samples) > 100)
    if not len(loud):
        return Utterance(samples[:0], [])
    start = max(0, loud[0] - int(0.04 * SAMPLE_RATE))
    end = loud[-1] + int(0.12 * SAMPLE_RATE)
    padded = np.pad(samples, (0, max(0, end - len(samples))))
    return Utterance(padded[start:end], [(max(0.0, time - start / SAMPLE_RATE), name) for time, name in phonemes])
