#!/bin/sh
# From dist/Elsewise.app to a signed, notarised disk image: sh packaging/macos.sh [build|sign|notarise|staple|dmg|verify|all]
# Each step runs alone and says what it lacks.
#   ELSEWISE_SIGN_IDENTITY   "Developer ID Application: NAME (TEAM)"; "-" signs for this machine alone
#   ELSEWISE_NOTARY_PROFILE  a profile of `xcrun notarytool store-credentials`
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
app=dist/Elsewise.app
entitlements=packaging/entitlements.plist

lacks() {
  echo "macos.sh $step: $1" >&2
  exit 1
}

need() {
  command -v "$1" >/dev/null 2>&1 || lacks "the tool '$1' is missing: install Xcode's command line tools (xcode-select --install)"
}

need_app() {
  [ -d "$app" ] || lacks "$app is missing: run 'sh packaging/macos.sh build' first"
}

need_identity() {
  [ -n "${ELSEWISE_SIGN_IDENTITY:-}" ] || lacks "ELSEWISE_SIGN_IDENTITY is not set (see 'security find-identity -v -p codesigning')"
}

need_profile() {
  [ -n "${ELSEWISE_NOTARY_PROFILE:-}" ] || lacks "ELSEWISE_NOTARY_PROFILE is not set (xcrun notarytool store-credentials)"
}

image() {
  version=$("$python" -P -c 'import sys; sys.path.insert(0, "."); from runtime import __version__; print(__version__)')
  echo "dist/Elsewise-$version-arm64.dmg"
}

# A Mach-O file of 64 bits, or a fat one, by its first four bytes.
is_code() {
  case "$(od -An -tx1 -N4 "$1" | tr -d ' \n')" in
    cffaedfe | cafebabe) return 0 ;;
    *) return 1 ;;
  esac
}

# A hardened process loads only libraries of its own team, and a signature for this machine alone (-) names none.
how() {
  if [ "$ELSEWISE_SIGN_IDENTITY" = "-" ]; then echo --timestamp=none; else echo --options runtime --timestamp; fi
}

build() {
  need iconutil
  "$python" -P packaging/package.py
}

# Libraries first, then frameworks, then the bundle: a signature covers those inside. --deep is not for signing (Apple's TN2206).
sign() {
  need codesign
  need_app
  need_identity
  find "$app" -type f | sort > build/signed-files
  while IFS= read -r file; do
    if is_code "$file" && [ "$file" != "$app/Contents/MacOS/elsewise" ]; then
      codesign --force $(how) --sign "$ELSEWISE_SIGN_IDENTITY" "$file"
    fi
  done < build/signed-files
  find "$app" -type d -name '*.framework' | sort -r > build/signed-files
  while IFS= read -r framework; do
    codesign --force $(how) --sign "$ELSEWISE_SIGN_IDENTITY" "$framework"
  done < build/signed-files
  codesign --force $(how) --entitlements "$entitlements" --sign "$ELSEWISE_SIGN_IDENTITY" "$app"
  codesign --verify --deep --strict "$app"
}

notarise() {
  need ditto
  need xcrun
  need_app
  need_profile
  [ "${ELSEWISE_SIGN_IDENTITY:-}" != "-" ] || lacks "a bundle signed for this machine alone cannot be notarised"
  ditto -c -k --keepParent "$app" build/Elsewise.zip
  answer=$(xcrun notarytool submit build/Elsewise.zip --keychain-profile "$ELSEWISE_NOTARY_PROFILE" --wait)
  echo "$answer"
  case $answer in
    *"status: Accepted"*) ;;  # notarytool ends with 0 whatever Apple says
    *) lacks "Apple did not accept the app; its reasons: xcrun notarytool log ID --keychain-profile $ELSEWISE_NOTARY_PROFILE" ;;
  esac
}

staple() {
  need xcrun
  need_app
  xcrun stapler staple "$app"
}

dmg() {
  need hdiutil
  need_app
  case "${ELSEWISE_SIGN_IDENTITY:-}" in "" | -) signed= ;; *) signed=yes && need codesign ;; esac
  rm -rf build/dmg
  mkdir -p build/dmg
  cp -R "$app" build/dmg/
  ln -s /Applications build/dmg/Applications
  hdiutil create -volname Elsewise -srcfolder build/dmg -fs HFS+ -format UDZO -ov "$(image)"
  [ -z "$signed" ] || codesign --timestamp --sign "$ELSEWISE_SIGN_IDENTITY" "$(image)"
  image
}

# What can be seen without opening the window.
verify() {
  need_app
  program=$app/Contents/MacOS/elsewise
  "$program" --version
  [ "$(find "$app" -name 'libmlx.dylib' -type f | wc -l)" -eq 1 ] || lacks "not exactly one libmlx.dylib"
  library=$(find "$app" -name 'libmlx.dylib' -type f)
  [ -f "$(dirname "$library")/mlx.metallib" ] || lacks "mlx.metallib is not beside $library"
  [ -z "$(find "$app" -name 'libtorch*' -type f)" ] || lacks "torch is in the bundle"
  [ -n "$(find "$app/Contents/Resources" -name '*.pyc' -type f)" ] || lacks "no byte code is in the bundle: each start would compile"
  "$program" doctor
}

mkdir -p build
step=${1:-all}
case "$step" in
  build | sign | notarise | staple | dmg | verify) "$step" ;;
  all)
    for step in build sign verify notarise staple dmg; do
      echo "-- $step"
      case "${ELSEWISE_SIGN_IDENTITY:-} $step" in
        "- notarise" | "- staple") echo "left out: the bundle is signed for this machine alone" ;;
        *) "$step" ;;
      esac
    done
    ;;
  *)
    echo "macos.sh: no step '$step': build, sign, notarise, staple, dmg, verify or all" >&2
    exit 2
    ;;
esac
