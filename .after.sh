cd /tmp/w/smts
nice -n 19 timeout 300 .venv/bin/python -m pytest -q -x -p no:cacheprovider -n 0 --durations=3 tests/unit/data/transform/test_smts.py tests/unit/data/transform/test_plan.py > .spark.log 2>&1
bash .mut2.sh > .mut2.log 2>&1
