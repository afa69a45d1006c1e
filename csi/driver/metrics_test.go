package driver

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
)

func TestMetrics(t *testing.T) {
	m, d := running(t, mounted(""), map[string]string{"discard": "batch"})
	r := prometheus.NewRegistry()
	metrics := NewMetrics(d, func() bool { return true }, r)
	metrics.Observe("NodeStageVolume", codes.OK, time.Second)
	if err := metrics.Trim(t.Context(), d); err != nil {
		t.Error(err)
	}
	m.keys[keyring.NameFile] = &switched{Provider: m.keys[keyring.NameFile], away: true}
	if err := metrics.Rewrap(t.Context(), m.process(0)); err == nil {
		t.Error("no error of a provider that is away")
	}
	d.any.Store = &listed{Store: d.any.Store, away: volume.ErrUnavailable}
	if err := metrics.Yield(t.Context(), d); err == nil {
		t.Error("no error of states that are away")
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, each := range f.Metric {
			got[f.GetName()] += value(each)
		}
	}
	for name, want := range map[string]float64{
		"kubeveil_csi_call_seconds": 1, "kubeveil_csi_mappings": 1, "kubeveil_csi_registered": 1, "kubeveil_csi_trimmed_bytes_total": 4096,
		"kubeveil_csi_keys_rewrapped_total": 0, "kubeveil_csi_upkeep_failures_total": 2,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v, want %v", name, v, want)
		}
	}
}

func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
}
