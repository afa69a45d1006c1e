package bench

import (
	"errors"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
	"github.com/kubeveil/kubeveil/pkg/bench/volumes"
)

func TestBenchStorageFlags(t *testing.T) {
	good := benchStorageFlags{options: volumes.RunConfig{Class: "a", Baseline: "b",
		Platform: bench.VM, Choice: suite.Choice{Rounds: 1}}, measuring: measuring{seconds: 1}, size: 64}
	if o, err := good.parse(); err != nil || o.Size != 64<<20 || o.Sample.Seconds() != 1 {
		t.Errorf("%+v, %v", o, err)
	}
	for name, tt := range map[string]struct {
		change func(*benchStorageFlags)
		want   string
	}{
		"no baseline": {func(f *benchStorageFlags) { f.options.Baseline = "" },
			"--baseline-class"},
		"one class": {func(f *benchStorageFlags) { f.options.Baseline = "a" }, "both a"},
		"no round": {func(f *benchStorageFlags) { f.options.Rounds = 0 },
			"at least one round"},
		"a mistyped platform": {func(f *benchStorageFlags) { f.options.Platform = "sevsnp" },
			`"sevsnp": write one of`},
		"too small": {func(f *benchStorageFlags) { f.size = 1 }, "64 MiB"},
	} {
		f := good
		tt.change(&f)
		if _, err := f.parse(); !errors.Is(err, verb.ErrUsage) ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
