package driver

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestMetrics(t *testing.T) {
	m, d := running(t, mounted(""), map[string]string{"discard": "batch"})
	r := prometheus.NewRegistry()
	metrics := NewMetrics(d, func() bool { return true }, r)
	metrics.Observe(Call{Method: "NodeStageVolume", Took: time.Second})
	older := fmt.Errorf("volume: %w", &crypt.RefusedError{Kind: crypt.OlderImage})
	metrics.Observe(Call{Method: "NodeStageVolume", Err: older})
	metrics.Observe(Call{Method: "NodeStageVolume", Err: keyring.ErrUnavailable})
	errtest.Check(t, metrics.Trim(t.Context(), d))

	m.keys[keyring.NameFile] = &switched{Provider: m.keys[keyring.NameFile], away: true}
	if err := metrics.Rewrap(t.Context(), m.process(0)); err == nil {
		t.Error("no error although a provider is away")
	}

	d.anySet.Store = &listed{Store: d.anySet.Store, away: volume.ErrUnavailable}
	if err := metrics.FenceLost(t.Context(), d); err == nil {
		t.Error("no error although the states cannot be read")
	}
	families, err := r.Gather()
	errtest.Must(t, err)

	got := map[string]float64{}
	for _, f := range families {
		for _, each := range f.Metric {
			got[f.GetName()] += value(each)
		}
	}

	for name, want := range map[string]float64{
		"kubeveil_csi_refused_total": 1, "kubeveil_csi_key_service_failures_total": 1,
		"kubeveil_csi_fenced_total": 0, "kubeveil_csi_unsealed_total": 0, "kubeveil_csi_orphans": 0,
		"kubeveil_csi_call_seconds": 3, "kubeveil_csi_mappings": 1, "kubeveil_csi_registered": 1,
		"kubeveil_csi_trimmed_bytes_total":  4096,
		"kubeveil_csi_keys_rewrapped_total": 0, "kubeveil_csi_upkeep_failures_total": 2,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v, want %v", name, v, want)
		}
	}
}

func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() +
		float64(m.GetHistogram().GetSampleCount())
}

// The metrics count mappings that are fenced, and volumes that are closed without their keys.
func TestWhatAnOperatorShouldSeeIsCounted(t *testing.T) {
	m, d := two(t)
	other, heir := m.heir()
	errtest.Must(t, other.stageVolume(heir, pvc))
	if err := d.CheckDisks(t.Context()); err != nil || d.fenced.Load() != 1 {
		t.Errorf("fenced %d, %v", d.fenced.Load(), err)
	}
	d = m.process(0)
	if _, err := d.Sets[BackendFile].Close(t.Context(), restored, nil); err != nil || d.unsealed.Load() != 1 {
		t.Errorf("unsealed %d, %v", d.unsealed.Load(), err)
	}
}
