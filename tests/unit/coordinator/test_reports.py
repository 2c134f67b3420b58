"""Reports to the superior agent: the lines of the RL trainer profile, worked out by hand."""

from onward.coordinator.reports import Day, Job, daily_summary, job_report

DAY = Day(
    trajectories=1234,
    mean=0.7149,
    deviation=0.118,
    completed=1,
    failed=2,
    model="agent-zero-rl-v4",
    deployed="2025-12-07T09:30:00.000Z",
    model_mean=0.74,
    baseline=0.71,
    issues=("training job j1 failed with OOM", "agent-zero-rl-v5 was rolled back (high_error_rate)"),
    recommendations=("Give the next job a smaller batch.", "Retrain with gradient checkpointing enabled."),
)
EMPTY = Day(0, None, None, 0, 0, None, None, None, None, (), ())


def test_a_daily_summary_has_the_lines_of_the_profile():
    assert daily_summary(DAY) == (
        "Daily training summary\n"
        "- Trajectories collected: 1,234 (last 24h)\n"
        "- Average reward: 0.71 ± 0.12\n"
        "- Training jobs: 1 completed / 2 failed\n"
        "- Current model: agent-zero-rl-v4 (deployed 2025-12-07T09:30:00.000Z)\n"
        "- Model performance: 0.74 (+0.03 vs baseline)\n"
        "- Issues: training job j1 failed with OOM; agent-zero-rl-v5 was rolled back (high_error_rate)\n"
        "- Recommendations: Give the next job a smaller batch. Retrain with gradient checkpointing enabled."
    )


def test_a_summary_of_a_day_without_work_invents_no_number():
    assert daily_summary(EMPTY).split("\n")[1:] == [
        "- Trajectories collected: 0 (last 24h)",
        "- Average reward: not known",
        "- Training jobs: 0 completed / 0 failed",
        "- Current model: none",
        "- Model performance: no reward in the last 24h",
        "- Issues: none",
        "- Recommendations: none",
    ]


def test_a_job_report_has_the_lines_of_the_profile():
    job = Job("job-47", 7560.0, 10_000, 0.8312, 0.0375, "passed", "scheduled (canary)", 50.4)
    assert job_report(job) == (
        "Training job report\n"
        "- Training job ID: job-47\n"
        "- Duration: 2.10h\n"
        "- Samples used: 10,000\n"
        "- Final reward: 0.831\n"
        "- Improvement: +3.8%\n"
        "- Validation: passed\n"
        "- Deployment: scheduled (canary)\n"
        "- Cost: $50.40"
    )


def test_a_job_report_says_what_is_not_known():
    report = job_report(Job("job-1", None, None, None, None, None, "none", None))
    assert report.count("not known") == 5 and "Validation: none" in report
