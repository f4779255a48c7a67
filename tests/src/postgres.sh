set -e
# A signal to the group of the tests ends them, and so the input.
trap '' HUP INT TERM
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
data=${DISK:+$DISK_AT}
data=${data:-$folder}/data
options="-p $PORT -k $folder -c listen_addresses=127.0.0.1 $OPTIONS"
if [ -n "$CERTIFICATE" ]; then
    (umask 077; printf %s "$CERTIFICATE" >"$folder/certificate"; printf %s "$KEY" >"$folder/key")
    options="$options -c ssl=on -c ssl_cert_file=$folder/certificate -c ssl_key_file=$folder/key"
fi
set_clock() { printf '%+d\n' "$1" >"$folder/next"; mv "$folder/next" "$folder/clock"; }
faked=
if [ -n "$CLOCK" ]; then
    set_clock 0
    library=$(ls /usr/lib/*/faketime/libfaketime.so.1)
    faked="env LD_PRELOAD=$library FAKETIME_TIMESTAMP_FILE=$folder/clock FAKETIME_NO_CACHE=1"
    faked="$faked FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_DISABLE_SHM=1"
fi
control() { $faked "$BIN/pg_ctl" -D "$data" -w -l "$folder/log" -o "$options" "$@" >/dev/null 2>&1; }
if [ -n "$PRIMARY" ]; then
    "$BIN/pg_basebackup" -h 127.0.0.1 -p "$PRIMARY" -U postgres -D "$data" --write-recovery-conf --checkpoint=fast --no-sync >&2
else
    "$BIN/initdb" -D "$data" -U postgres -A trust --no-sync ${WAL:+"--waldir=$folder/wal"} >"$folder/initdb" 2>&1 || { cat "$folder/initdb" >&2; exit 1; }
fi
control start || { cat "$folder/log" >&2; exit 1; }
echo done
while read -r line; do
    if eval "$line"; then echo done; else echo "failed: $(tail -n 1 "$folder/log")"; fi
done
exec >/dev/null 2>&1
control -m immediate stop
