package revocation

import (
	"testing"
	"time"
)

func TestReadingsOfConnectionsArePaced(t *testing.T) {
	for _, tt := range []struct{ took, want time.Duration }{
		{0, revokeEvery},
		{10 * time.Millisecond, revokeEvery - 10*time.Millisecond},
		{revokeEvery / 2, revokeEvery / 2},
		{400 * time.Millisecond, 400 * time.Millisecond},
		{time.Minute, revokeEvery},
	} {
		if got := pauseAfter(tt.took); got != tt.want {
			t.Errorf("after %s: %s, want %s", tt.took, got, tt.want)
		}
	}
}
