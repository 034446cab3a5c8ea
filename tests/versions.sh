#!/usr/bin/env bash
# Run the tests at the lowest and at the newest versions that pyproject.toml allows, on each Python,
# of the package and of its extras contrib, mujoco and plots. Other extras are the newest.
#
#     bash tests/versions.sh 3.10 3.11 3.12 3.13 -- OPTIONS OF PYTEST
#
# Needs uv (pip install uv), which finds the Pythons or fetches them. One environment at a time is
# made in a temporary folder: torch with CUDA takes 5 GB. Each ends with a line
# `3.10 lowest: 5000 passed, 30 skipped` in OUTPUT/counts.txt, beside the versions in
# OUTPUT/3.10-lowest.txt, and the last lines of output are all of it as a table.
set -u
cd "$(dirname "$0")/.."
output=${OUTPUT:-versions}
pythons=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do pythons+=("$1"); shift; done
[ $# -eq 0 ] || shift
[ ${#pythons[@]} -gt 0 ] || pythons=(3.10 3.11 3.12 3.13)
mkdir -p "$output"
failed=0
for python in "${pythons[@]}"; do
    for kind in ${KINDS:-lowest newest}; do
        resolution=highest
        [ "$kind" = newest ] || resolution=lowest-direct
        folder=$(mktemp -d)
        report=$output/$python-$kind
        # The versions of what we depend on are given; what tests need beside is the newest that fits.
        # RL Zoo asks for versions of its own, so that its tests are left out.
        echo "rl_zoo3 ; sys_platform == 'nowhere'" >"$folder/left_out.txt"
        if uv pip compile --quiet --no-build --python-version "$python" --resolution $resolution \
            --extra contrib --extra mujoco --extra plots pyproject.toml --output-file "$folder/ours.txt" >/dev/null &&
            uv venv --quiet --python "$python" "$folder/venv" &&
            VIRTUAL_ENV=$folder/venv uv pip install --quiet \
                --constraint "$folder/ours.txt" --override "$folder/left_out.txt" --group test --editable ".[contrib,mujoco,plots]"; then
            VIRTUAL_ENV=$folder/venv uv pip freeze --exclude-editable >"$report.txt"
            # Warnings are no errors here: packages of other years warn of one another.
            status=0
            PATH=$folder/venv/bin:$PATH VIRTUAL_ENV=$folder/venv \
                pytest --numprocesses "${WORKERS:-3}" --dist worksteal -p no:cacheprovider \
                    --override-ini filterwarnings= "$@" >"$report.log" 2>&1 || status=$?
            [ $status -eq 0 ] || failed=1
            counts=$(grep -E ' in [0-9.]+s' "$report.log" | tail -n 1 | sed 's/^=* *//; s/ in .*//')
        else
            counts="not installed"
            failed=1
        fi
        touch "$output/counts.txt"
        others=$(grep -v "^$python $kind:" "$output/counts.txt")
        echo "$python $kind: $counts"
        printf '%s\n' "$others" "$python $kind: $counts" | sed '/^$/d' | sort >"$output/counts.txt"
        rm -rf "$folder"
    done
done
packages="torch stable-baselines3 sb3-contrib gymnasium ale-py numpy"
echo "| Python | versions | ${packages// / | } | passed | failed | skipped |"
echo "| --- | --- |$(for _ in $packages passed failed skipped; do printf ' --- |'; done)"
while read -r python kind counts; do
    row="| $python | ${kind%:} |"
    for package in $packages; do
        row+=" $(sed -n "s/^$package==\([0-9.]*\).*/\1/p" "$output/$python-${kind%:}.txt") |"
    done
    for outcome in passed failed skipped; do
        row+=" $(grep -oE "[0-9]+ $outcome" <<<"$counts" | cut -d' ' -f1 | grep . || echo 0) |"
    done
    echo "$row"
done <"$output/counts.txt"
exit $failed
