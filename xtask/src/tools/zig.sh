#!/bin/sh
# Zig as the C compiler of a system, if this is called cc-SYSTEM, and as an archiver, if it is called ar.
# Build scripts pass Rust's name of the target, which has one more part than Zig's.
for argument do
    shift
    case $argument in --target=*) ;; *) set -- "$@" "$argument" ;; esac
done
name=$(basename "$0")
case $name in
# Zig adds checks to what is not optimised, which call functions that Rust does not link.
cc-*) set -- cc -target "${name#cc-}" -fno-sanitize=undefined "$@" ;;
ar) set -- ar "$@" ;;
esac
exec "$(dirname "$0")/ziglang/zig" "$@"
