#!/usr/bin/env bash
# Fill build/: the texts, and espeak-ng with its English data. Needs apt-get (Debian) and pip; installs nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq wordnet-base wamerican
for package in *.deb; do dpkg -x "$package" root; done
PYTHONPATH="$here/../.." python3 "$here/texts.py" --root root

python3 -m pip download -q --no-deps --only-binary=:all: -d wheels espeakng-loader==0.2.4
python3 -m zipfile -e wheels/espeakng_loader-*.whl wheels
from=wheels/espeakng_loader to=$here/build/espeak
mkdir -p "$to/espeak-ng-data/lang/gmw" "$to/espeak-ng-data/voices"
cp "$from"/libespeak-ng.so "$to/libespeak-ng.so"
(cd "$from/espeak-ng-data" && cp -r en_dict phontab phonindex phondata intonations "$to/espeak-ng-data")
cp -r "$from"/espeak-ng-data/lang/gmw/en* "$to/espeak-ng-data/lang/gmw"
cp -r "$from/espeak-ng-data/voices/!v" "$to/espeak-ng-data/voices"
