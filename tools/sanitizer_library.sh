# Sourced by run_emulated.sh and run_sanitized.sh, whose interpreter has to preload what a sanitizer brings.

# library NAME: the path of one of the compiler's own libraries
library() {
  path=$("${CXX:-g++}" -print-file-name="$1")
  [ -e "$path" ] || { echo "$(basename "$0" .sh): no $1; install gcc's sanitizer libraries" >&2; exit 2; }
  echo "$path"
}
