package lane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"

	"github.com/kubeveil/kubeveil/e2e/bench/bpffs"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Names of lanes. Each lane is compared with laneNone, which has no policy. laneControl has none
// either; its comparison shows the noise.
const (
	laneNone    = "none"
	laneControl = "control"
	laneTen     = "10x10"
	laneMany    = "200"
	laneQueue   = "queue"
)

// comparedLanes lists the lanes that are compared with laneNone, in the order of the report.
var comparedLanes = []string{laneControl, laneTen, laneMany, laneQueue}

// quantity is a quantity that is measured in each lane. An amount is a number of bytes or of
// connections.
type quantity struct {
	name string
	// rate is the unit of an amount per second, and perSecond converts to it. cost is the unit of
	// CPU time per amount, and perAmount converts core-seconds to it.
	rate, cost           bench.Unit
	perSecond, perAmount float64
	// amount returns the amount of a turn.
	amount func(Sizes) int
	// prepare returns a function that moves the amount and is measured, and a function that ends
	// it. Both must be called on the calling thread, in the client's namespace.
	prepare func(l *Lane, amount int) (do func() error, end func(), err error)
}

var quantities = []quantity{
	{"established", bench.Mbps, bench.CoreSecondsPerGB, 8 / 1e6, 1e9,
		func(z Sizes) int { return z.Bytes }, (*Lane).PrepareStream},
	{"new", bench.PerSecond, bench.Microsecond, 1, 1e6,
		func(z Sizes) int { return z.Short }, (*Lane).PrepareShort},
}

const (
	prefixConnections = "connections_"
	suffixCPU         = "_cpu"
)

// caseOf returns the name of the case of a quantity and a lane. suffixCPU is appended for its CPU
// time.
func (q quantity) caseOf(lane string) string { return prefixConnections + q.name + "_" + lane }

// Sizes are the sizes of the measurements.
type Sizes struct {
	// Bytes and Short are the numbers of bytes and of short connections per turn. Turns is the
	// number of turns per round.
	Bytes, Short, Turns int
}

// run is one run of the part.
type run struct {
	suite.Choice
	*suite.Run
	sizes Sizes
}

// Run measures the cost of policies for connections as CPU time of the whole machine. The kernel
// processes packets in softirqs, whose time counts for arbitrary processes, and the program behind
// NFQUEUE runs in parallel. Rates are the rates of one thread; no gate judges them.
//
// Each round has several turns, in each of which all lanes are measured in random order. Other work
// of the machine then affects all lanes, and the mean of several turns less than one long turn.
//
// dir is a folder for the records of pods, in memory. The caller removes it.
func Run(ctx context.Context, choice suite.Choice, r *suite.Run, z Sizes, dir string) (err error) {
	s := &run{choice, r, z}
	pins, err := bpffs.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pins.Close()) }()
	lanes, err := newLanes(dir, pins)
	defer func() {
		for _, l := range lanes {
			err = errors.Join(err, l.Close())
		}
	}()
	if err != nil {
		return err
	}
	for _, l := range lanes {
		if l.Rules > 0 {
			s.Notes = append(s.Notes, fmt.Sprintf("Lane %s has %d rules for the server, of which "+
				"one allows the client or one in ten. All are for one port, so the plan joins "+
				"them: lines %d.", l.Name, l.Rules, l.Lines))
		}
	}

	seed := bench.NewSeed()
	s.Progress("order of the lanes drawn with seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	v := suite.Values{}
	err = s.takeRounds(ctx, lanes, rng, v)
	return errors.Join(err, s.compareLanes(v))
}

// takeRounds measures all quantities of all lanes and adds the values of each round to v. After an
// error, v has the values of the complete rounds.
func (s *run) takeRounds(ctx context.Context, lanes []*Lane, rng *rand.Rand, v suite.Values) error {
	for round := range s.Rounds {
		for _, q := range quantities {
			if err := s.takeTurns(ctx, q, lanes, rng, v); err != nil {
				return err
			}
			s.Progress("round %d  %s", round+1, q.lastRound(v))
		}
	}
	return nil
}

// newLanes makes all lanes. The caller must close the returned lanes also after an error.
func newLanes(dir string, pins *bpffs.FS) (lanes []*Lane, err error) {
	for _, one := range []struct {
		name  string
		judge Judge
	}{{laneNone, nil}, {laneControl, nil}, {laneTen, TenByTen()},
		{laneMany, AfterOthers()}, {laneQueue, JudgeQueue}} {
		l, err := New(one.name, dir, pins, one.judge)
		lanes = append(lanes, l)
		if err != nil {
			return lanes, err
		}
	}
	return lanes, nil
}

// takeTurns measures a quantity of all lanes for one round and adds the values to v.
func (s *run) takeTurns(ctx context.Context, q quantity, lanes []*Lane, rng *rand.Rand,
	v suite.Values) error {
	spent, took := map[string]float64{}, map[string]float64{}
	for range s.sizes.Turns {
		for _, i := range rng.Perm(len(lanes)) {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			l := lanes[i]
			cpu, seconds, err := turn(l, q, q.amount(s.sizes))
			if err != nil {
				return fmt.Errorf("lane %s, %s connections: %w", l.Name, q.name, err)
			}
			spent[l.Name] += cpu
			took[l.Name] += seconds
		}
	}

	all := float64(q.amount(s.sizes) * s.sizes.Turns)
	for _, l := range lanes {
		v.Add(q.caseOf(l.Name), all*q.perSecond/took[l.Name])
		v.Add(q.caseOf(l.Name)+suffixCPU, spent[l.Name]*q.perAmount/all)
	}
	return nil
}

// turn moves an amount and returns the CPU time and the elapsed time, in seconds. It first flushes
// conntrack, because entries of former turns would remain for a while, and in some lanes more than
// in others.
func turn(l *Lane, q quantity, amount int) (cpu, seconds float64, err error) {
	if err := l.Host.Do(ForgetConnections); err != nil {
		return 0, 0, err
	}
	err = l.Client.Do(func() error {
		do, end, err := q.prepare(l, amount)
		if err != nil {
			return err
		}
		defer end()
		runtime.GC()

		asked := l.Asked()
		m, err := load.Start()
		if err != nil {
			return err
		}
		if err := do(); err != nil {
			return err
		}
		spent, took, err := m.Stop()
		cpu, seconds = spent.Seconds(), took.Seconds()
		if asked = l.Asked() - asked; err == nil && l.Queue != nil && q.name == "new" &&
			asked < uint64(amount) {
			err = fmt.Errorf("the program received %d packets of %d connections", asked, amount)
		}
		return err
	})
	return cpu, seconds, err
}

// lastRound returns a text about the last round: the CPU time without a policy, and the ratios of
// the other lanes to it.
func (q quantity) lastRound(v suite.Values) string {
	base := v.Last(q.caseOf(laneNone) + suffixCPU)
	text := fmt.Sprintf("%s connections: CPU %s without a policy", q.name, q.cost.Format(base))
	for _, lane := range comparedLanes {
		text += fmt.Sprintf(", %s %.3f", lane, v.Last(q.caseOf(lane)+suffixCPU)/base)
	}
	return text
}

// compareLanes adds the cases, each of which compares a lane with laneNone. If v lacks rounds, the
// cases are marked as incomplete.
func (s *run) compareLanes(v suite.Values) error {
	for _, q := range quantities {
		done := len(v[q.caseOf(laneNone)])
		if done < s.Rounds {
			s.Notes = append(s.Notes, fmt.Sprintf("Incomplete: the run ended after %d of %d rounds "+
				"of %s connections. Their gates are missed.", done, s.Rounds, q.name))
		}
		if done == 0 {
			continue
		}

		for _, lane := range comparedLanes {
			for _, c := range []struct {
				suffix string
				unit   bench.Unit
			}{{"", q.rate}, {suffixCPU, q.cost}} {
				ours, base := v[q.caseOf(lane)+c.suffix], v[q.caseOf(laneNone)+c.suffix]
				one, err := bench.NewCase(q.caseOf(lane)+c.suffix, 0, c.unit, ours, base, "no policy")
				if err != nil {
					return err
				}
				one.Incomplete = done < s.Rounds
				s.Result.Cases = append(s.Result.Cases, one)
			}
		}
	}
	return nil
}

// Labels returns the titles of the cases, keyed by name.
func Labels() map[string]string {
	out := map[string]string{}
	for name, text := range map[string]string{
		laneControl: "no policy again, the control",
		laneTen:     "10 policies with 10 rules",
		laneMany:    fmt.Sprintf("%d rules that do not match and one that does", Others),
		laneQueue:   "first packets to a Go program by NFQUEUE, a stand-in",
	} {
		for _, q := range quantities {
			out[q.caseOf(name)] = fmt.Sprintf("%s connections, %s: rate", q.name, text)
			out[q.caseOf(name)+suffixCPU] = fmt.Sprintf("%s connections, %s: CPU", q.name, text)
		}
	}
	return out
}
