package telemetry

import "testing"

func TestSkippedSamplesAreAMetric(t *testing.T) {
	const name = "kubeveil_drop_samples_skipped_total"
	got := gather(t, metricsOf(Status{DropSamples: &DropSamples{
		Skipped: map[string]uint64{"policy_ingress": 7}}}))
	if v, ok := value(got, name, "reason=policy_ingress"); !ok || v != 7 {
		t.Errorf("%s is %v (%t), want 7", name, v, ok)
	}
	if v, ok := value(got, "kubeveil_drops_sampled", ""); !ok || v != 1 {
		t.Errorf("all kinds of drops are sampled, but the metric is %v (%t)", v, ok)
	}
	got = gather(t, metricsOf(Status{DropSamples: &DropSamples{Problem: "no module"}}))
	if v, ok := value(got, "kubeveil_drops_sampled", ""); !ok || v != 0 {
		t.Errorf("some drops are not sampled, but the metric is %v (%t)", v, ok)
	}
	if _, ok := gather(t, metricsOf(Status{}))[name]; ok {
		t.Errorf("%s is there while nothing is sampled", name)
	}
}
