"""What right answers to the exercises of chapter 14 must satisfy."""
import numpy as np

from transformer_course.toolbox.exercises import Case

__all__ = ["EXERCISES"]


def _two_by_two(answer):
    matrix = np.asarray(answer, float)
    return matrix.shape == (2, 2) and bool((np.abs(matrix) <= 1000).all())


def _small_radius(answer):
    return np.abs(np.linalg.eigvals(np.asarray(answer, float))).max() <= 0.5 + 1e-6


def _large_fifth_power(answer):
    return np.linalg.norm(np.linalg.matrix_power(np.asarray(answer, float), 5), 2) >= 100


EXERCISES = {
    "14.parameters": [
        Case("weights and biases of both layers are counted, each once for all time steps", expected=1480),
    ],
    "14.backwards": [
        Case("a row without padding is turned around", args=([[1, 2, 3]], [3]), expected=[[3, 2, 1]]),
        Case("padding stays at the end", args=([[1, 2, 3, 0, 0]], [3]), expected=[[3, 2, 1, 0, 0]]),
        Case("each row has its own length", args=([[5, 6, 7, 0], [8, 9, 0, 0]], [3, 2]),
             expected=[[7, 6, 5, 0], [9, 8, 0, 0]]),
        Case("the lengths decide what is padding, not the zeros", args=([[0, 4, 0, 6], [7, 0, 9, 9]], [4, 2]),
             expected=[[6, 0, 4, 0], [0, 7, 9, 9]]),
        Case("turning around one word changes nothing", args=([[3, 9, 9]], [1]), expected=[[3, 9, 9]]),
    ],
    "14.combine": [
        Case("doing nothing first changes nothing", args=((1.0, 0.0), (0.5, 3.0)), expected=(0.5, 3.0)),
        Case("doing nothing afterwards changes nothing", args=((0.5, 3.0), (1.0, 0.0)), expected=(0.5, 3.0)),
        Case("the first input is multiplied by the second factor", args=((0.5, 3.0), (2.0, 1.0)), expected=(1.0, 7.0)),
        Case("the order of the two steps counts", args=((2.0, 1.0), (0.5, 3.0)), expected=(1.0, 3.5)),
        Case("a step may forget everything before it", args=((2.0, 7.0), (0.0, 4.0)), expected=(0.0, 4.0)),
    ],
    "14.hump": [
        Case("the matrix is 2 by 2, its numbers at most 1000 in absolute value", expected=_two_by_two),
        Case("the spectral radius is at most 0.5", expected=_small_radius),
        Case("the spectral norm of the fifth power is at least 100", expected=_large_fifth_power),
    ],
}
