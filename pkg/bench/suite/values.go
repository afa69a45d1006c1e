package suite

// Values holds one value per round, keyed by the name of the case.
type Values map[string][]float64

// Add adds the value of a round.
func (v Values) Add(name string, x float64) { v[name] = append(v[name], x) }

// Last returns the value of the last round. There must be one.
func (v Values) Last(name string) float64 { return v[name][len(v[name])-1] }
