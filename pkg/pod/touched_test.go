package pod_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/pkg/pod"
)

func TestTouchedTellsOfEachChange(t *testing.T) {
	p := pod.Paths{PodDir: t.TempDir(), PolicyDir: t.TempDir()}
	if got := p.Touched(); got.SameRecords(got) || got.Same(got) {
		t.Errorf("folders of just now are at rest: %v", got)
	}
	long := time.Now().Add(-time.Hour)
	rest := func() pod.Touched {
		for _, dir := range []string{p.PodDir, p.PolicyDir} {
			errtest.Must(t, os.Chtimes(dir, long, long))
		}
		long = long.Add(time.Minute)
		return p.Touched()
	}

	before := rest()
	if now := p.Touched(); !before.Same(now) || !before.SameRecords(now) {
		t.Errorf("at rest: %v, then %v", before, now)
	}
	for _, dir := range []string{p.PodDir, p.PolicyDir} {
		filetest.Write(t, filepath.Join(dir, "a"), []byte("1"), 0o600)
		got := p.Touched()
		if before.Same(got) || before.SameRecords(got) != (dir == p.PolicyDir) {
			t.Errorf("a new file in %s: %v, then %v", dir, before, got)
		}
		before = rest()
	}
	p.PolicyDir = filepath.Join(p.PolicyDir, "none")
	if got := p.Touched(); before.Same(got) {
		t.Errorf("a folder that is not there is at rest: %v", got)
	}
}
