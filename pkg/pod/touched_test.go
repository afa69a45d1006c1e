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
	if got := p.Touched(); got != (pod.Touched{}) {
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
	if before == (pod.Touched{}) || p.Touched() != before {
		t.Errorf("at rest: %v, then %v", before, p.Touched())
	}
	for _, dir := range []string{p.PodDir, p.PolicyDir} {
		filetest.Write(t, filepath.Join(dir, "a"), []byte("1"), 0o600)
		if got := p.Touched(); got == before {
			t.Errorf("a new file in %s goes unseen", dir)
		}
		before = rest()
	}
	p.PolicyDir = filepath.Join(p.PolicyDir, "none")
	if got := p.Touched(); got != (pod.Touched{}) {
		t.Errorf("a folder that is not there is at rest: %v", got)
	}
}
