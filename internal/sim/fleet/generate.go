// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// serviceSpec is a kind of service in a mix.
type serviceSpec struct {
	name    string
	part    float64 // replicas per GPU of the mix's size
	request time.Duration
	load    [2]float64 // of a replica at its peak: uniform between
	memory  int
	p99     time.Duration
	day     string
	follow  bool // the number of replicas follows the day
}

// jobSpec is a kind of batch job in a mix.
type jobSpec struct {
	name   string
	part   float64 // offered load, in GPUs per GPU of the mix's size
	gpus   int
	median time.Duration
	memory int
	kernel time.Duration
}

// Mix is a synthetic load. All of its figures are assumptions.
type Mix struct {
	Name, About string
	services    []serviceSpec
	jobs        []jobSpec
}

const (
	shortRequest = 100 * time.Microsecond
	stepRequest  = 3 * time.Millisecond
	longRequest  = 10 * time.Millisecond
)

// services of the mixes; a mix changes the parts.
func online(part float64, follow bool, slack time.Duration) []serviceSpec {
	return []serviceSpec{
		{"ranker", part * 0.4, shortRequest, [2]float64{0.002, 0.02}, 20, 2 * time.Millisecond * slack, "evening", follow},
		{"chat", part * 0.4, stepRequest, [2]float64{0.1, 0.4}, 60, 25 * time.Millisecond * slack, "evening", follow},
		{"vision", part * 0.2, longRequest, [2]float64{0.1, 0.3}, 30, 80 * time.Millisecond * slack, "office", follow},
	}
}

func singles(part float64) jobSpec {
	return jobSpec{"job", part, 1, 40 * time.Minute, 35, 20 * time.Millisecond}
}

// Mixes lists the synthetic loads.
func Mixes() []Mix {
	return []Mix{
		{
			"online", "mostly services with tight targets, some batch jobs of one GPU", online(0.7, false, 1),
			[]jobSpec{singles(0.3)},
		},
		{
			"mixed", "services, batch jobs of one GPU and gangs of two and four", online(0.4, false, 1),
			[]jobSpec{singles(0.35), {"tune", 0.15, 2, time.Hour, 60, time.Millisecond}, {"train", 0.1, 4, 2 * time.Hour, 70, time.Millisecond}},
		},
		{
			"loose", "as mixed, with targets 40 times as long", online(0.4, false, 40),
			[]jobSpec{singles(0.35), {"tune", 0.15, 2, time.Hour, 60, time.Millisecond}, {"train", 0.1, 4, 2 * time.Hour, 70, time.Millisecond}},
		},
		{
			"autoscaled", "as online, and the number of replicas follows the day", online(0.7, true, 1),
			[]jobSpec{singles(0.3)},
		},
		{
			"frequent", "services with 300 to 3,000 short requests per second, and batch jobs of one GPU",
			[]serviceSpec{{"ranker", 0.5, shortRequest, [2]float64{0.03, 0.3}, 20, 2 * time.Millisecond, "evening", false}},
			[]jobSpec{singles(0.5)},
		},
		{
			"large", "services and jobs that need most of a GPU's memory",
			[]serviceSpec{{"chat", 0.5, stepRequest, [2]float64{0.1, 0.4}, 110, 25 * time.Millisecond, "evening", false}},
			[]jobSpec{{"job", 0.5, 1, time.Hour, 100, 20 * time.Millisecond}},
		},
		{
			"training", "gangs of 8 and 16 GPUs with full memory, few services", online(0.1, false, 1),
			[]jobSpec{{"train", 0.6, 8, 4 * time.Hour, 120, time.Millisecond}, {"large", 0.3, 16, 6 * time.Hour, 120, time.Millisecond}},
		},
	}
}

// FindMix returns a mix by its name.
func FindMix(name string) (*Mix, error) {
	all := Mixes()
	i := slices.IndexFunc(all, func(m Mix) bool { return m.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("unknown mix %q; use %s", name, MixNames())
	}
	return &all[i], nil
}

// MixNames lists the names of the synthetic loads, for people.
func MixNames() string {
	var names []string
	for _, m := range Mixes() {
		names = append(names, m.Name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// jobSigma is the standard deviation of the logarithm of a job's run time.
const jobSigma = 0.8

// Generate makes a day of the mix. size is the number of GPUs that it would occupy if each replica
// had one and jobs followed each other without a gap. Equal sizes and seeds give equal traces.
func (m *Mix) Generate(size float64, seed uint64) []Pod {
	r := rand.New(rand.NewPCG(seed, 15))
	var pods []Pod
	for i := range m.services {
		s := &m.services[i]
		count := int(math.Round(s.part * size))
		for k := range count {
			p := Pod{
				Name: s.name, Service: true, GPUs: 1, Memory: s.memory, Priority: 1000, Request: s.request, P99: s.p99, Day: s.day,
			}
			load := s.load[0] + float64((s.load[1]-s.load[0])*r.Float64())
			p.Rate = math.Round(load/s.request.Seconds()*10) / 10
			if s.follow {
				pods = append(pods, p.following(k, count)...)
			} else {
				pods = append(pods, p)
			}
		}
	}
	const day = 24 * time.Hour
	for i := range m.jobs {
		j := &m.jobs[i]
		mean := j.median.Seconds() * math.Exp(jobSigma*jobSigma/2)
		rate := j.part * size / mean / float64(j.gpus) // per second
		job := func(arrive time.Duration, part float64) {
			length := j.median.Seconds() * math.Exp(jobSigma*r.NormFloat64()) * part
			pods = append(pods, Pod{
				Name: j.name, Arrive: arrive.Truncate(time.Second), Duration: time.Duration(max(math.Round(length), 1)) * time.Second,
				GPUs: j.gpus, Memory: j.memory, Kernel: j.kernel,
			})
		}
		for range int(math.Round(j.part * size / float64(j.gpus))) {
			job(0, r.Float64()) // what runs when the day begins
		}
		for at := r.ExpFloat64() / rate; at < day.Seconds(); at += r.ExpFloat64() / rate {
			job(time.Duration(at*float64(time.Second)), 1)
		}
	}
	for i := range pods {
		if err := pods[i].complete(); err != nil {
			panic("fleet: mix " + m.Name + ": " + err.Error()) // a test generates all mixes
		}
	}
	sortPods(pods)
	return pods
}

// following returns a pod for every time of the day at which replica k of count is wanted. All
// replicas then have the rate of the peak.
func (p *Pod) following(k, count int) []Pod {
	day := days[p.Day]
	var out []Pod
	one := *p
	one.Day = "flat"
	for h := range day {
		wanted := float64(k) < math.Ceil(day[h]*float64(count))
		before := h > 0 && float64(k) < math.Ceil(day[h-1]*float64(count))
		if wanted && !before {
			one.Arrive, one.Duration = time.Duration(h)*time.Hour, 0
			out = append(out, one)
		}
		if wanted {
			out[len(out)-1].Duration += time.Hour
		}
	}
	return out
}
