package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/driver"
	"github.com/kubeveil/kubeveil/csi/volume"
)

// A refused disk is said at the claim, once for a time, and nothing else is.
func TestRefusalsBecomeEventsOfTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		w := newWarner(func(_ context.Context, volume, reason, _ string) error {
			said = append(said, volume+" "+reason)
			return volumeError(volume)
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.run(ctx)
		refused := func(v string, kind crypt.Kind) {
			w.observe(driver.Call{Volume: v,
				Err: fmt.Errorf("stage: %w", &crypt.RefusedError{Kind: kind})})
			synctest.Wait()
		}

		for range 3 {
			refused("a", crypt.OlderImage)
		}

		refused("a", crypt.Tampered)
		refused("b", crypt.OlderImage)
		w.observe(driver.Call{Volume: "c", Err: volume.ErrInUse})
		w.observe(driver.Call{Volume: "c"})
		<-time.After(warnAgain)
		refused("a", crypt.OlderImage)
		if want := []string{"a OlderImage", "a Tampered", "b OlderImage",
			"a OlderImage"}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
	})
}

// volumeError fails for one of them: the others are said all the same.
func volumeError(v string) error {
	if v == "b" {
		return volume.ErrUnavailable
	}
	return nil
}
